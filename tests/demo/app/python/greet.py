"""The package that the demo installs."""


def main():
    print("hello from pip")
