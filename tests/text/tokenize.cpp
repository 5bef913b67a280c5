// tokenize bpe VOCABULARY MERGES | word-piece VOCABULARY [cased]: reads texts, each ended by a zero
// byte, and prints the tokens of each in a line. For beside_hugging_face.py.

#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>

#include "paceline/core/error.h"
#include "paceline/text/bpe_tokenizer.h"
#include "paceline/text/word_piece_tokenizer.h"

int main(int argc, char** argv) try {
  using namespace paceline::text;
  const std::vector<std::string> words(argv + 1, argv + argc);
  std::unique_ptr<Tokenizer> tokenizer;
  if (words.size() == 3 && words[0] == "bpe") {
    tokenizer = std::make_unique<BpeTokenizer>(BpeTokenizer::read(words[1], words[2]));
  } else if (words.size() >= 2 && words[0] == "word-piece") {
    tokenizer =
        std::make_unique<WordPieceTokenizer>(WordPieceTokenizer::read(words[1], words.size() == 2));
  } else {
    std::fputs("usage: tokenize bpe VOCABULARY MERGES | word-piece VOCABULARY [cased]\n", stderr);
    return 2;
  }
  const std::string all(std::istreambuf_iterator<char>(std::cin), {});
  for (std::size_t begin = 0; begin < all.size();) {
    const std::size_t end = std::min(all.find('\0', begin), all.size());
    for (const Token token : tokenizer->encode(std::string_view(all).substr(begin, end - begin)))
      std::printf("%d ", token);
    std::puts("");
    begin = end + 1;
  }
  return 0;
} catch (const paceline::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
