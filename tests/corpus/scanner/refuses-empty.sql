SELECT {{ /* nothing */ }}
