"""The rules of the redactor, as tables: what each must catch, what it must leave, when it is an incident."""
