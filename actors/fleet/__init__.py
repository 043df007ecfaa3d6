"""What daemons share besides rows: owners, mailboxes, breakers, decisions about writes."""
