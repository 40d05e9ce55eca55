"""What a namespace has done, for those who pay and those who want to know: a book in Parquet files."""
