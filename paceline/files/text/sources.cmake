set(SOURCES
  bpe_tokenizer.cpp
  unicode.cpp
  word_piece_tokenizer.cpp)
set(LIBRARIES fmt::fmt nlohmann_json::nlohmann_json PkgConfig::UTF8PROC)
