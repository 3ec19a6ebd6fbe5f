"""What each role does with the messages it may receive."""
