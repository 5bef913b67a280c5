// Bit rot and torn files: any change to the newest checkpoint's bytes is refused, and the older
// checkpoint is used.

#include <random>

#include <gtest/gtest.h>

#include "tests/files/checkpoint/solo_team.h"
#include "tests/files/checkpoint/test_directory.h"
#include "tests/harness/random_seed.h"

namespace paceline {
namespace {

using harness::load_newest;
using testing::TestDirectory;

std::string mutated(const std::string& original, int kind, std::mt19937& random) {
  const auto at = [&](std::size_t limit) { return random() % limit; };
  std::string text = original;
  switch (kind) {
    case 0: {
      const auto i = at(text.size());
      text[i] = static_cast<char>(text[i] ^ (1 << at(8)));
      break;
    }
    case 1:
      text.resize(at(text.size()));
      break;
    case 2:
      text += std::string(1 + at(64), '\0');
      break;
    case 3:
      text.erase(at(text.size()), 1 + at(8));
      break;
    default: {
      const auto begin = at(text.size());
      text.replace(begin, std::min<std::size_t>(1 + at(512), text.size() - begin),
                   std::string(std::min<std::size_t>(16, text.size() - begin), '\0'));
    }
  }
  return text == original ? text + "x" : text;
}

TEST(CheckpointMutations, every_flip_cut_zeroed_page_and_appendix_is_refused) {
  TestDirectory folder;
  testing::SoloTeam team(folder.path());
  const CheckpointDirectory& directory = team.directory();
  for (const std::int64_t step : {1, 2}) team.save(step);
  std::mt19937 random(harness::random_seed());
  int refused = 0;
  constexpr int kRounds = 1000;
  for (int round = 0; round < kRounds; ++round) {
    const std::string path =
        folder / "step-00000002/" + (round % 2 ? "manifest.json" : "boxes-00000-of-00001.bin");
    const auto original = testing::read_text(path);
    testing::write_text(path, mutated(original, (round / 2) % 5, random));
    const auto loaded = load_newest(directory);
    ASSERT_TRUE(loaded);
    ASSERT_EQ(loaded->manifest.step, 1) << "round " << round;
    ASSERT_EQ(loaded->refused.size(), 1U);
    EXPECT_NE(loaded->refused[0].reason.find(folder.path()), std::string::npos);
    testing::expect_sample(*loaded);
    testing::write_text(path, original);
    ++refused;
  }
  EXPECT_EQ(refused, kRounds);
  EXPECT_EQ(load_newest(directory)->manifest.step, 2);
}

}  // namespace
}  // namespace paceline
