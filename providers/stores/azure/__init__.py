"""Azure Blob Storage: `account` and `token` find who we are, `store` makes the requests."""
