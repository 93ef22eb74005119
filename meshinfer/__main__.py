"""`python -m meshinfer`."""

from meshinfer.cli.main import main

if __name__ == "__main__":
    main()
