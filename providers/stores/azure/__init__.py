"""Azure Blob Storage: `account` and `token` find the credentials, `store` sends the requests."""
