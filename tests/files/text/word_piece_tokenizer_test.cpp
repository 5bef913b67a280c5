#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/files/text/tokenizer.h"

#include "tests/harness/expect_error.h"
#include "tests/harness/fresh_directory.h"

namespace paceline::text {
namespace {

class WordPiece : public testing::Test {
 protected:
  void write(const std::string& text) { std::ofstream(file_, std::ios::binary) << text; }
  WordPieceTokenizer read(bool is_lower_case = true) {
    return WordPieceTokenizer::read(file_, is_lower_case);
  }

  const FreshDirectory folder_;
  const std::string file_ = folder_.path() + "/vocab.txt";
};

// Returns the pieces of `text`, separated by spaces. `names`: the lines of the vocabulary.
std::string pieces(const WordPieceTokenizer& tokenizer, std::string_view text,
                   std::vector<std::string> names) {
  std::string all;
  for (const Token token : tokenizer.encode(text)) {
    all += (all.empty() ? "" : " ") + names.at(static_cast<std::size_t>(token));
  }
  return all;
}

// The vocabulary and the texts are those of a test of BERT.
TEST_F(WordPiece, a_word_is_cut_into_the_longest_pieces) {
  const std::vector<std::string> names{"[UNK]", "[CLS]", "[SEP]", "want", "##want", "##ed",  "wa",
                                       "un",    "runn",  "##ing", ",",    "low",    "lowest"};
  std::string lines;
  for (const auto& name : names) lines += name + "\n";
  write(lines);
  const auto tokenizer = read();
  EXPECT_EQ(pieces(tokenizer,
                   "UNwant\xC3\xA9"
                   "d,running",
                   names),
            "un ##want ##ed , runn ##ing");
  EXPECT_EQ(pieces(tokenizer, "unwanted running", names), "un ##want ##ed runn ##ing");
  EXPECT_EQ(pieces(tokenizer, "unwantedX running", names), "[UNK] runn ##ing");
  EXPECT_EQ(pieces(tokenizer, "", names), "");
  EXPECT_EQ(tokenizer.find("[CLS]"), 1);
  EXPECT_EQ(tokenizer.find("nothing"), std::nullopt);
}

TEST_F(WordPiece, punctuation_and_ideographs_are_words_of_their_own) {
  const std::vector<std::string> names{"[UNK]", "a", "b", "$", "-", "\xE5\x8D\x9A", "\xE6\x8E\xA8"};
  write("[UNK]\na\nb\n$\n-\n\xE5\x8D\x9A\n\xE6\x8E\xA8");
  const auto tokenizer = read();
  EXPECT_EQ(pieces(tokenizer, "a$b-a", names), "a $ b - a");
  EXPECT_EQ(pieces(tokenizer,
                   "a\xE5\x8D\x9A\xE6\x8E\xA8"
                   "b",
                   names),
            "a \xE5\x8D\x9A \xE6\x8E\xA8 b");
  EXPECT_EQ(pieces(tokenizer,
                   "a\tb\xC2\xA0"
                   "a\n",
                   names),
            "a b a");
  EXPECT_EQ(pieces(tokenizer, std::string_view("a\0\x07\xFF", 4), names), "a");
}

TEST_F(WordPiece, case_and_accents_are_kept_on_request) {
  write("[UNK]\nA\na\n\xC3\x84\n");
  const std::vector<std::string> names{"[UNK]", "A", "a", "\xC3\x84"};
  EXPECT_EQ(pieces(read(false), "A a \xC3\x84", names), "A a \xC3\x84");
  EXPECT_EQ(pieces(read(true), "A a \xC3\x84", names), "a a a");
}

TEST_F(WordPiece, a_word_of_more_than_a_hundred_characters_is_unknown) {
  write("[UNK]\na\n##a\n");
  const auto tokenizer = read();
  EXPECT_EQ(tokenizer.encode(std::string(100, 'a')).size(), 100U);
  EXPECT_THAT(tokenizer.encode(std::string(101, 'a')), testing::ElementsAre(0));
}

TEST_F(WordPiece, decoding_joins_pieces_and_separates_words) {
  write("[UNK]\nun\n##want\n##ed\n,\n");
  const auto tokenizer = read();
  EXPECT_EQ(tokenizer.decode(std::vector<Token>{1, 2, 3, 4, 1}), "unwanted , un");
  const Token token = 5;
  expect_error(ErrorCode::kInvalid, {"decode", "5"}, [&] { (void)tokenizer.decode({&token, 1}); });
}

TEST_F(WordPiece, damaged_files_are_named_in_errors) {
  write("[UNK]\na\nb\na\n");
  expect_error(ErrorCode::kCorrupt, {"vocab.txt:4", "'a'", "twice"}, [&] { (void)read(); });
  write("a\nb\n");
  expect_error(ErrorCode::kCorrupt, {"vocab.txt", "[UNK]"}, [&] { (void)read(); });
  std::filesystem::remove(file_);
  expect_error(ErrorCode::kCorrupt, {"vocab.txt"}, [&] { (void)read(); });
}

TEST_F(WordPiece, a_byte_order_mark_is_skipped_and_files_of_other_kinds_are_refused) {
  write("\xEF\xBB\xBF[PAD]\n[UNK]\n");
  EXPECT_EQ(read().find("[PAD]"), Token{0});
  write("\xFF\xFE[\0P\0");
  expect_error(ErrorCode::kCorrupt, {file_, "UTF-16LE", "iconv"}, [&] { read(); });
  write("version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 231508\n");
  expect_error(ErrorCode::kCorrupt, {file_, "git lfs pull"}, [&] { read(); });
  write("<!DOCTYPE html>\n[UNK]\n");
  expect_error(ErrorCode::kCorrupt, {file_, "a web page"}, [&] { read(); });
}

}  // namespace
}  // namespace paceline::text
