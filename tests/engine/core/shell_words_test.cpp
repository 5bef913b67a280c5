// Words for shells: a quoted text is unchanged when it is split again, also by a real shell.

#include <cstdio>
#include <memory>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/option_text.h"

#include "tests/harness/random_seed.h"

namespace paceline {
namespace {

using Words = std::vector<std::string>;

std::string through_a_shell(const std::string& quoted) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(("printf %s " + quoted).c_str(), "r"),
                                                   pclose);
  std::string text(1000, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), pipe.get()));
  return text;
}

TEST(ShellWords, come_back_from_a_shell_as_they_were) {
  for (const std::string word : {"plain", "a b", "", "it's", "'", "$HOME `id` $(id)", "a\nb", "\\",
                                 "!x", "*", "~", "-n", "\xff\xfe", "a;b|c&d<e>f", "\x01\t"}) {
    EXPECT_EQ(through_a_shell(shell_quoted(word)), word);
    EXPECT_EQ(split_shell_words(shell_quoted(word), "x"), Words{word});
  }
  EXPECT_EQ(shell_quoted("/usr/bin/a-b_c.d=1,2:3@4%5+6"), "/usr/bin/a-b_c.d=1,2:3@4%5+6");
}

TEST(ShellWords, are_split_as_a_shell_does) {
  EXPECT_EQ(split_shell_words("ssh  -o 'A B' -p\t22 ", "x"),
            (Words{"ssh", "-o", "A B", "-p", "22"}));
  EXPECT_EQ(split_shell_words("a\"b c\"'d'\\ e \"\\\"\\\\\\n\"", "x"),
            (Words{"ab cd e", "\"\\\\n"}));
  EXPECT_EQ(split_shell_words("'' \"\"", "x"), (Words{"", ""}));
  EXPECT_EQ(split_shell_words("  ", "x"), Words{});
  EXPECT_EQ(split_shell_words("'$HOME;'", "x"), Words{"$HOME;"});
}

TEST(ShellWords, refuse_what_only_a_shell_could_do) {
  for (const std::string text :
       {"a;b", "$HOME", "\"$HOME\"", "`id`", "a|b", "a&", "a>b", "(a)", "'a", "\"a", "a\\"}) {
    EXPECT_THROW(split_shell_words(text, "--ssh-command"), Error) << text;
  }
}

TEST(ShellWords, survive_quoting_and_splitting_whatever_they_hold) {
  std::mt19937 random(harness::random_seed());
  for (int round = 0; round < 20'000; ++round) {
    std::string word(random() % 12, ' ');
    for (char& c : word) c = static_cast<char>(1 + random() % 255);
    ASSERT_EQ(split_shell_words(shell_quoted(word), "x"), Words{word});
  }
}

}  // namespace
}  // namespace paceline
