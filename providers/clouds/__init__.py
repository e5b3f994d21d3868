"""The metadata services: which cloud this machine is (`detect`), how one is asked (`http`), and the sources of each."""
