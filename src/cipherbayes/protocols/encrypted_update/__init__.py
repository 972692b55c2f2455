"""The encrypted update: preconditioner and step under CKKS, sites that check it."""
