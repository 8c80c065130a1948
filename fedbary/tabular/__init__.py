"""Classification of tables: the loss with class weights."""
