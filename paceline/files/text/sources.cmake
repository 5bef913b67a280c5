set(SOURCES
  bpe_tokenizer.cpp
  byte_tokenizer.cpp
  text_file.cpp
  unicode.cpp
  word_piece_tokenizer.cpp)
set(LIBRARIES fmt::fmt nlohmann_json::nlohmann_json PkgConfig::UTF8PROC)
