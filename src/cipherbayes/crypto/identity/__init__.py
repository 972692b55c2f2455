"""Who a party is: signatures and rosters."""
