"""Google Cloud Storage: `credentials` finds who we are, `store` makes the requests, `batch` many deletes at once."""
