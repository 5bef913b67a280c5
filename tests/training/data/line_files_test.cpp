#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <numeric>

#include <gmock/gmock.h>
#include <zlib.h>

#include <torch/torch.h>

#include "paceline/engine/core/error.h"
#include "paceline/files/images/sample_random.h"
#include "paceline/training/data/data_loader.h"
#include "paceline/training/data/streamed_dataset.h"

#include "tests/harness/expect_error.h"
#include "tests/harness/fresh_directory.h"

namespace paceline::data {
namespace {

using namespace std::string_literals;
using ::testing::ElementsAre;
using Values = std::vector<std::int64_t>;

// A line's value, and a random number for its position in the epoch.
Sample parse(const StreamedDataset::Record& line, std::int64_t epoch) {
  if (line.bytes == "bad") throw Error(ErrorCode::kCorrupt, "this is no number");
  images::SampleRandom random(9, epoch, line.number);
  return {torch::tensor(std::int64_t{std::atoll(line.bytes.c_str())}),
          torch::tensor(random.below(1 << 20))};
}

// Three files with the lines 0 to 99 in total; one file is compressed with gzip.
class LineFilesTest : public testing::Test {
 protected:
  LineFilesTest() {
    paths_ = {folder_.write("a", lines(0, 41)), gzipped("b.gz", lines(41, 60)),
              folder_.write("c", lines(60, 100))};
  }
  static std::string lines(int first, int end) {
    std::string text;
    for (int i = first; i < end; ++i) text += fmt::format("{}\n", i);
    return text;
  }
  std::string gzipped(const std::string& name, const std::string& text) const {
    const gzFile file = ::gzopen(folder_.file(name).c_str(), "wb");
    ::gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
    ::gzclose(file);
    return folder_.file(name);
  }
  std::shared_ptr<LineFiles> stream(std::int64_t window) const {
    return std::make_shared<LineFiles>(paths_, parse,
                                       LineFilesOptions{.shuffle_window = window, .seed = 4});
  }
  std::vector<std::string> texts(const std::string& text, std::int64_t max_line_bytes = 100) const {
    const LineFiles files({folder_.write("text", text)}, parse, {.max_line_bytes = max_line_bytes});
    const auto reader = files.read(0);
    std::vector<std::string> texts;
    while (auto record = reader->next()) texts.push_back(record->bytes);
    return texts;
  }

  const FreshDirectory folder_;
  std::vector<std::string> paths_;
};

// The samples of a rank in each step: the number in the epoch, value and random number of each
// sample.
struct Taken {
  std::vector<Values> numbers, values, randoms;
  std::vector<std::int64_t> consumed;  // after each step
};

Taken take(const std::shared_ptr<LineFiles>& stream, int ranks, int rank,
           const DataLoaderOptions& options, std::int64_t consumed = 0, std::int64_t epoch = 1) {
  DataLoader loader(stream, ranks, rank, options);
  auto running = loader.epoch(epoch, consumed);
  const auto list = [](const at::Tensor& tensor) {
    return Values(tensor.data_ptr<std::int64_t>(),
                  tensor.data_ptr<std::int64_t>() + tensor.numel());
  };
  Taken taken;
  while (auto batch = running.next()) {
    taken.numbers.push_back(batch->weight > 0 ? batch->indices : Values{});
    taken.values.push_back(batch->weight > 0 ? list(batch->data) : Values{});
    taken.randoms.push_back(batch->weight > 0 ? list(batch->target) : Values{});
    if (batch->ends_step) taken.consumed.push_back(loader.consumed());
  }
  EXPECT_TRUE(loader.exhausted());
  return taken;
}

TEST_F(LineFilesTest, lines_come_in_the_files_order_from_plain_and_gzip) {
  const auto taken = take(stream(0), 1, 0, {.batch_size = 30});
  EXPECT_EQ(taken.values.size(), 4U);
  Values all;
  for (const auto& step : taken.values) all.insert(all.end(), step.begin(), step.end());
  Values wanted(100);
  std::iota(wanted.begin(), wanted.end(), 0);
  EXPECT_EQ(all, wanted);
  EXPECT_THAT(taken.consumed, ElementsAre(30, 60, 90, 100));
}

TEST_F(LineFilesTest, ends_of_lines_are_what_they_usually_are) {
  EXPECT_THAT(texts("a\r\n\nb c\n"), ElementsAre("a", "", "b c"));
  EXPECT_THAT(texts("a\nlast"), ElementsAre("a", "last"));
  EXPECT_THAT(texts(""), ElementsAre());
  EXPECT_THAT(texts("\n"), ElementsAre(""));
  const std::string text(300 << 10, 'x');  // more than is read at once
  EXPECT_THAT(texts(text + "\n" + text + "\ny", 1 << 20), ElementsAre(text, text, "y"));
}

// Other bytes may follow the gzip data or surround the text.
TEST_F(LineFilesTest, everything_behind_a_gzip_member_is_read_or_refused) {
  const auto packed = [&](const std::string& text) {
    std::ifstream file(gzipped("packed", text), std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const std::string one = packed("a\n"), two = packed("b\nc"), none = packed("");
  const std::string zero(1, '\0'), zeros(1000, '\0'), block(100 << 10, '\0');
  EXPECT_THAT(texts(one + two), ElementsAre("a", "b", "c"));
  EXPECT_THAT(texts(one + none + two), ElementsAre("a", "b", "c"));
  for (const std::string& padding : {zero, zeros, block}) {
    EXPECT_THAT(texts(one + padding), ElementsAre("a"));
    EXPECT_THAT(texts(one + padding + two + padding), ElementsAre("a", "b", "c"));
  }
  EXPECT_THAT(texts(packed("a\0b\n"s)), ElementsAre("a\0b"s)) << "zeros within are text";
  for (const std::string& rest : {"x"s, "text that is not packed\n"s, "\x1f"s, zeros + "x",
                                  "\x8b\x1f"s, std::string(1000, '\1')})
    expect_error(ErrorCode::kCorrupt,
                 {"text: gzip data ends at byte ", "neither gzip data nor padding", "gzip -dc"},
                 [&] { texts(one + rest); });
  expect_error(ErrorCode::kCorrupt,
               {"ends at byte " + std::to_string(one.size() + 3) + " of the file"},
               [&] { texts(one + zero + zero + zero + "x"); });
  expect_error(ErrorCode::kCorrupt, {"its gzip data is cut"}, [&] { texts(one + "\x1f\x8b"); });
  expect_error(ErrorCode::kCorrupt, {"its gzip data is cut"},
               [&] { texts(one + two.substr(0, two.size() - 1)); });
}

TEST_F(LineFilesTest, a_byte_order_mark_is_no_part_of_the_first_line) {
  const std::string mark = "\xEF\xBB\xBF";
  EXPECT_THAT(texts(mark + "a\nb\n"), ElementsAre("a", "b"));
  EXPECT_THAT(texts(mark), ElementsAre());
  EXPECT_THAT(texts(mark + "\n"), ElementsAre(""));
  EXPECT_THAT(texts("a\n" + mark + "b\n"), ElementsAre("a", mark + "b"));
  // The mark is left out at the beginning of every file, also of a compressed one.
  const LineFiles files({folder_.write("first", mark + "1\n"), gzipped("second.gz", mark + "2\n")},
                        parse);
  const auto reader = files.read(0);
  EXPECT_EQ(reader->next()->bytes, "1");
  EXPECT_EQ(reader->next()->bytes, "2");
  expect_error(ErrorCode::kCorrupt, {"text: ", "UTF-16LE", "iconv -f UTF-16LE -t UTF-8"},
               [&] { texts("\xFF\xFE" + "a\0\n\0"s); });
  expect_error(ErrorCode::kCorrupt, {"UTF-16BE"}, [&] { texts("\xFE\xFF" + "\0a\0\n"s); });
  expect_error(ErrorCode::kCorrupt, {"text: ", "git lfs pull"}, [&] {
    texts("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n");
  });
}

TEST_F(LineFilesTest, every_epoch_is_shuffled_in_another_way_and_has_every_line_once) {
  std::map<std::int64_t, Values> orders;
  for (const std::int64_t epoch : {0, 1, 0}) {
    Values order;
    for (const auto& step : take(stream(32), 1, 0, {.batch_size = 7}, 0, epoch).values)
      order.insert(order.end(), step.begin(), step.end());
    if (orders.contains(epoch)) {
      EXPECT_EQ(orders[epoch], order);
    }
    orders[epoch] = order;
  }
  EXPECT_NE(orders[0], orders[1]);
  for (auto& [epoch, order] : orders) {
    EXPECT_FALSE(std::ranges::is_sorted(order));
    std::ranges::sort(order);
    for (std::int64_t i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
  }
}

// 2 ranks save after any of their steps, and another number of ranks continues. The order and the
// random numbers must be those of an uninterrupted run.
TEST_F(LineFilesTest, an_epoch_is_continued_exactly_by_any_number_of_ranks_and_threads) {
  for (const std::int64_t window : {0, 1, 16, 1000}) {
    const auto whole = take(stream(window), 1, 0, {.batch_size = 1, .num_threads = 0});
    ASSERT_EQ(whole.values.size(), 100U);
    const auto saved = take(stream(window), 2, 1, {.batch_size = 5});
    for (const std::int64_t consumed : {saved.consumed[0], saved.consumed[4], saved.consumed[8]}) {
      for (const int ranks : {1, 2, 4, 8}) {
        std::vector<int> seen(100);
        for (int rank = 0; rank < ranks; ++rank) {
          const auto rest = take(stream(window), ranks, rank,
                                 {.batch_size = 5, .num_threads = rank % 3}, consumed);
          for (std::size_t step = 0; step < rest.numbers.size(); ++step) {
            for (std::size_t i = 0; i < rest.numbers[step].size(); ++i) {
              const auto number = static_cast<std::size_t>(rest.numbers[step][i]);
              ++seen[number];
              EXPECT_EQ(rest.values[step][i], whole.values[number][0]);
              EXPECT_EQ(rest.randoms[step][i], whole.randoms[number][0]);
            }
          }
          EXPECT_EQ(rest.consumed.back(), 100);
        }
        for (std::int64_t number = 0; number < 100; ++number) {
          const int times = seen[static_cast<std::size_t>(number)];
          EXPECT_EQ(times > 0, number >= consumed) << number << " on " << ranks << " ranks";
        }
        EXPECT_LT(std::accumulate(seen.begin(), seen.end(), 0), 100 - consumed + ranks)
            << "only the last step is filled up";
      }
    }
  }
}

TEST_F(LineFilesTest, a_global_batch_has_the_same_lines_at_any_number_of_ranks) {
  const auto alone = take(stream(16), 1, 0, {.global_batch_size = 12}, 24);
  for (const int ranks : {2, 4, 8}) {
    std::vector<Values> steps(alone.numbers.size());
    for (int rank = 0; rank < ranks; ++rank) {
      const auto own = take(stream(16), ranks, rank, {.global_batch_size = 12}, 24);
      EXPECT_EQ(own.consumed, alone.consumed);
      for (std::size_t step = 0; step < steps.size(); ++step)
        steps[step].insert(steps[step].end(), own.values[step].begin(), own.values[step].end());
    }
    for (std::size_t step = 0; step < steps.size(); ++step) {
      Values wanted = alone.values[step];
      std::ranges::sort(wanted);
      std::ranges::sort(steps[step]);
      EXPECT_EQ(steps[step], wanted) << "step " << step << " on " << ranks << " ranks";
    }
  }
}

TEST_F(LineFilesTest, logical_shards_and_a_last_step_that_is_left_out) {
  const auto two = take(stream(8), 2, 1, {.batch_size = 3, .logical_shards = 4});
  const auto one = take(stream(8), 1, 0, {.batch_size = 3, .logical_shards = 4});
  ASSERT_EQ(one.numbers.size(), 2 * two.numbers.size());
  EXPECT_EQ(two.numbers[0], one.numbers[2]);
  EXPECT_EQ(two.numbers[1], one.numbers[3]);
  const auto dropped = take(stream(8), 2, 0, {.batch_size = 15, .drop_last = true});
  EXPECT_THAT(dropped.consumed, ElementsAre(30, 60, 90));
}

TEST_F(LineFilesTest, a_position_beyond_the_files_is_refused) {
  EXPECT_TRUE(take(stream(16), 2, 0, {}, 100).values.empty());
  expect_error(ErrorCode::kInvalid, {"has 100 records", "cannot be continued after 101"},
               [&] { take(stream(16), 2, 0, {}, 101); });
}

TEST_F(LineFilesTest, errors_name_the_file_and_the_line) {
  const auto read = [&](const std::string& path) {
    take(std::make_shared<LineFiles>(std::vector{paths_[0], path}, parse,
                                     LineFilesOptions{.max_line_bytes = 100}),
         1, 0, {.batch_size = 8});
  };
  const std::string bad = folder_.write("bad", "1\n2\nbad\n");
  expect_error(ErrorCode::kCorrupt, {bad + ":3: this is no number"}, [&] { read(bad); });
  const std::string lengthy = folder_.write("long", "1\n" + std::string(101, 'x') + "\n");
  expect_error(ErrorCode::kCorrupt, {lengthy + ":2: a line of more than 100 bytes"},
               [&] { read(lengthy); });
  const std::string cut = gzipped("cut.gz", lines(0, 50));
  std::filesystem::resize_file(cut, std::filesystem::file_size(cut) - 9);
  expect_error(ErrorCode::kCorrupt, {cut, "its gzip data is cut"}, [&] { read(cut); });
  expect_error(ErrorCode::kSystem, {folder_.file("none")}, [&] { read(folder_.file("none")); });
  expect_error(ErrorCode::kSystem, {"Input/output error"}, [&] { read("/proc/self/mem"); });
  expect_error(ErrorCode::kInvalid, {"no file was given"}, [] { const LineFiles none({}, parse); });
}

TEST_F(LineFilesTest, a_file_that_vanishes_in_mid_epoch_ends_next_with_its_name) {
  const auto lines = stream(0);
  DataLoader loader(lines, 1, 0, {.batch_size = 10, .num_threads = 1, .prefetch = 1});
  auto running = loader.epoch(0);
  ASSERT_TRUE(running.next());
  std::filesystem::remove(paths_[2]);
  expect_error(ErrorCode::kSystem, {paths_[2]}, [&] {
    while (running.next()) {
    }
  });
}

}  // namespace
}  // namespace paceline::data
