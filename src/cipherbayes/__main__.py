"""``python -m cipherbayes``."""

from cipherbayes.cli.main import main

if __name__ == "__main__":
    main()
