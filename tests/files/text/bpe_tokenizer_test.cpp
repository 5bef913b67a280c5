#include <fstream>
#include <map>
#include <random>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/files/text/tokenizer.h"
#include "paceline/files/text/unicode.h"

#include "tests/harness/expect_error.h"
#include "tests/harness/fresh_directory.h"
#include "tests/harness/random_seed.h"

namespace paceline::text {
namespace {

using testing::ElementsAre;

void write(const std::string& file, const std::string& text) {
  std::ofstream(file, std::ios::binary) << text;
}

// The letters with which GPT-2 writes the bytes, in the order of its vocabulary.
std::vector<std::string> letters() {
  std::vector<std::string> seen, unseen;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool is_seen =
        (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || (byte >= 174 && byte <= 255);
    std::string letter;
    append_utf8(is_seen ? byte : 256 + static_cast<char32_t>(unseen.size()), letter);
    (is_seen ? seen : unseen).push_back(letter);
  }
  seen.insert(seen.end(), unseen.begin(), unseen.end());
  return seen;
}

// The files of a vocabulary with these merges ("a b") and the token <|endoftext|>.
class Files {
 public:
  explicit Files(const std::vector<std::string>& merges) {
    std::vector<std::string> names = letters();
    std::string lines = "#version: 0.2\n";
    for (const std::string& merge : merges) {
      const std::size_t space = merge.find(' ');
      names.push_back(merge.substr(0, space) + merge.substr(space + 1));
      lines += merge + "\n";
    }
    names.emplace_back("<|endoftext|>");
    std::string json;
    for (std::size_t token = 0; token < names.size(); ++token) {
      std::string name = names[token];
      if (name == "\"" || name == "\\") name.insert(0, "\\");
      json += fmt::format("{}\"{}\": {}", token == 0 ? "{" : ", ", name, token);
    }
    write(vocabulary, json + "}");
    write(this->merges, lines);
  }
  BpeTokenizer read() const { return BpeTokenizer::read(vocabulary, merges); }

  const FreshDirectory folder;
  const std::string vocabulary = folder.path() + "/vocab.json";
  const std::string merges = folder.path() + "/merges.txt";
};

std::vector<std::string> pieces(const BpeTokenizer& tokenizer, std::string_view text) {
  std::vector<std::string> all;
  for (const Token token : tokenizer.encode(text)) all.push_back(tokenizer.decode({&token, 1}));
  return all;
}

// The definition of BPE: merges the pair with the lowest rank everywhere, from left to right, until
// no pair is left.
std::vector<std::string> merged(std::string_view word, const std::vector<std::string>& merges) {
  std::vector<std::string> parts;
  for (const char letter : word) parts.emplace_back(1, letter);
  std::map<std::string, std::size_t> ranks;
  for (std::size_t i = 0; i < merges.size(); ++i) ranks.try_emplace(merges[i], i);
  while (true) {
    std::size_t best = merges.size();
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto found = ranks.find(parts[i] + " " + parts[i + 1]);
      if (found != ranks.end()) best = std::min(best, found->second);
    }
    if (best == merges.size()) return parts;
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      if (parts[i] + " " + parts[i + 1] != merges[best]) continue;
      parts[i] += parts[i + 1];
      parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    }
  }
}

TEST(BpeTokenizer, words_are_those_of_gpt2) {
  EXPECT_THAT(split_for_gpt2("Hello, world"), ElementsAre("Hello", ",", " world"));
  EXPECT_THAT(split_for_gpt2("we'll it's I'd 'tis"),
              ElementsAre("we", "'ll", " it", "'s", " I", "'d", " '", "tis"));
  EXPECT_THAT(split_for_gpt2("a  b   "), ElementsAre("a", " ", " b", "   "));
  EXPECT_THAT(split_for_gpt2("a\n\nb"), ElementsAre("a", "\n", "\n", "b"));
  EXPECT_THAT(split_for_gpt2("x2 42% \t?"), ElementsAre("x", "2", " 42", "%", " ", "\t", "?"));
  EXPECT_THAT(split_for_gpt2("\xC3\xA9t\xC3\xA9 \xE4\xB8\xAD\xE6\x96\x87"),
              ElementsAre("\xC3\xA9t\xC3\xA9", " \xE4\xB8\xAD\xE6\x96\x87"));
  EXPECT_THAT(split_for_gpt2("a\xFF\xFE"), ElementsAre("a", "\xFF\xFE"));
  EXPECT_THAT(split_for_gpt2(""), ElementsAre());
}

TEST(BpeTokenizer, the_pair_that_comes_first_in_the_file_is_merged_first) {
  const Files files({"l o", "lo w", "e r", "\xC4\xA0 lo", "\xC4\xA0lo w"});  // U+0120 is the space
  const BpeTokenizer tokenizer = files.read();
  EXPECT_THAT(pieces(tokenizer, "lower low"), ElementsAre("low", "er", " ", "low"));
  EXPECT_THAT(pieces(tokenizer, "loer lo"), ElementsAre("lo", "er", " lo"));
  EXPECT_EQ(tokenizer.vocabulary_size(), 256 + 5 + 1);
}

TEST(BpeTokenizer, random_words_are_merged_as_the_definition_says) {
  std::mt19937 random(harness::random_seed());
  for (int round = 0; round < 50; ++round) {
    std::vector<std::string> known{"a", "b", "c"};
    std::vector<std::string> merges;
    while (merges.size() < 12) {
      const auto any = [&] { return known[random() % known.size()]; };
      const std::string left = any(), right = any();
      if (std::ranges::find(known, left + right) != known.end()) continue;
      known.push_back(left + right);
      merges.push_back(left + " " + right);
    }
    const Files files(merges);
    const BpeTokenizer tokenizer = files.read();
    for (int i = 0; i < 20; ++i) {
      std::string word(1 + random() % 30, 'a');
      for (char& letter : word) letter = static_cast<char>('a' + random() % 3);
      EXPECT_EQ(pieces(tokenizer, word), merged(word, merges)) << word;
    }
  }
}

TEST(BpeTokenizer, any_bytes_come_back) {
  const Files files({"a b", "\xC4\xA0 a"});
  const BpeTokenizer tokenizer = files.read();
  std::mt19937 random(harness::random_seed());
  for (int round = 0; round < 200; ++round) {
    std::string bytes(random() % 100, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random() % (round % 2 == 0 ? 256 : 128));
    EXPECT_EQ(tokenizer.decode(tokenizer.encode(bytes)), bytes);
    const ByteTokenizer plain;
    EXPECT_EQ(plain.decode(plain.encode(bytes)), bytes);
  }
}

TEST(BpeTokenizer, a_long_word_takes_no_quadratic_time) {
  const Files files({"a a", "aa aa", "aaaa aaaa"});
  const BpeTokenizer tokenizer = files.read();
  const std::string word(1 << 20, 'a');
  EXPECT_EQ(tokenizer.encode(word).size(), word.size() / 8);
}

TEST(BpeTokenizer, special_tokens_are_found_and_are_no_text) {
  const Files files({"a b"});
  const BpeTokenizer tokenizer = files.read();
  const auto end = tokenizer.find("<|endoftext|>");
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(tokenizer.decode({&*end, 1}), "<|endoftext|>");
  EXPECT_GT(tokenizer.encode("<|endoftext|>").size(), 1U);
  EXPECT_EQ(tokenizer.find("<|nothing|>"), std::nullopt);
}

TEST(BpeTokenizer, a_token_outside_of_the_vocabulary_is_refused) {
  const Files files({"a b"});
  const BpeTokenizer tokenizer = files.read();
  for (const Token token : {-1, 258}) {
    expect_error(ErrorCode::kInvalid, {"decode", std::to_string(token)}, [&] {
      (void)tokenizer.decode({&token, 1});
    });
  }
  const Token token = 256;
  expect_error(ErrorCode::kInvalid, {"256"}, [&] { (void)ByteTokenizer().decode({&token, 1}); });
}

TEST(BpeTokenizer, damaged_files_are_refused_by_name) {
  const Files files({"a b"});
  const auto refused = [&](const std::vector<std::string>& words) {
    expect_error(ErrorCode::kCorrupt, words, [&] { (void)files.read(); });
  };
  write(files.merges, "#version: 0.2\na b\na c d\n");
  refused({"merges.txt:3", "a c d"});
  write(files.merges, "ab");
  refused({"merges.txt:1"});
  write(files.vocabulary, "{\"a\": 0, \"b\": 2}");
  refused({"vocab.json", "b", "2", "0 to 1"});
  write(files.vocabulary, "{\"a\": 0, \"b\": -1}");
  refused({"vocab.json", "-1"});
  write(files.vocabulary, "{\"a\": 0, \"b\": 1}");
  refused({"vocab.json", "no token for the byte 0"});
  for (const char* text : {"", "[1, 2]", "{", "{\"a\": 0", "{}"}) {
    write(files.vocabulary, text);
    refused({"vocab.json", "not a JSON object"});
  }
  std::filesystem::remove(files.vocabulary);
  refused({"vocab.json"});
  std::filesystem::create_directory(files.vocabulary);
  refused({"vocab.json"});
}

}  // namespace
}  // namespace paceline::text
