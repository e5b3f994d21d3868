"""Google Cloud Storage: `credentials` finds the credentials, `store` sends the requests, `batch` joins deletes into one."""
