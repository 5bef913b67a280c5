// tokenize bpe VOCABULARY MERGES | word-piece VOCABULARY [cased]: reads texts that each end with a
// zero byte, and prints the tokens of each text in a line. For beside_hugging_face.py.
//
// tokenize classes: prints two hexadecimal digits for each code from 0 to 10FFFF, with the bits of
// its classes (see below), then a line "CODE TEXT" for each code that append_plain_lower_case()
// changes. For unicode_classes_test.py.

#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>

#include "paceline/engine/core/error.h"
#include "paceline/files/text/tokenizer.h"
#include "paceline/files/text/unicode.h"

namespace {

using namespace paceline::text;

int print_classes() {
  constexpr char32_t kEnd = 0x110000;
  for (char32_t code = 0; code < kEnd; ++code) {
    std::printf("%02x", is_letter(code) | is_number(code) << 1 | is_space(code) << 2 |
                            is_punctuation(code) << 3 | is_control(code) << 4 |
                            is_accent(code) << 5);
  }
  std::puts("");
  for (char32_t code = 0; code < kEnd; ++code) {
    if (code >= 0xD800 && code < 0xE000) continue;  // UTF-8 does not have surrogates
    std::string itself, lower;
    append_utf8(code, itself);
    append_plain_lower_case(code, lower);
    if (lower != itself) std::printf("%x %s\n", static_cast<unsigned>(code), lower.c_str());
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) try {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words == std::vector<std::string>{"classes"}) return print_classes();
  std::unique_ptr<Tokenizer> tokenizer;
  if (words.size() == 3 && words[0] == "bpe") {
    tokenizer = std::make_unique<BpeTokenizer>(BpeTokenizer::read(words[1], words[2]));
  } else if (words.size() >= 2 && words[0] == "word-piece") {
    tokenizer =
        std::make_unique<WordPieceTokenizer>(WordPieceTokenizer::read(words[1], words.size() == 2));
  } else {
    std::fputs("usage: tokenize bpe VOCABULARY MERGES | word-piece VOCABULARY [cased] | classes\n",
               stderr);
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
