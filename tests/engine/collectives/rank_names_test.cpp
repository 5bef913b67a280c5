// How errors name ranks: by the number in the group and, if it is different, also by the number in
// the world. Flight records use only the number in the world. The group has ranks 1 and 3 of 4.

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/engine/transport/wire.h"

#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;
using testing::StartsWith;

const std::string kNames[] = {"rank 0 (rank 1 of the world", "rank 1 (rank 3 of the world"};

// Finds a rank's number that is neither in one of kNames nor in a reference to an output file,
// which has the number in the world.
std::string bare_rank_in(std::string text) {
  for (const char* named :
       {"rank 0 (rank 1 of the world", "rank 1 (rank 3 of the world", "see the output of rank 3"}) {
    const std::string_view name = named;
    for (std::size_t at = text.find(name); at != std::string::npos; at = text.find(name, at))
      text.erase(at, name.size());
  }
  for (const std::string_view word : {"rank ", "ranks ", "peer "}) {
    for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
      const std::size_t number = at + word.size();
      if (number < text.size() && text[number] >= '0' && text[number] <= '9')
        return text.substr(at, word.size() + 1);
    }
  }
  return "";
}

struct Row {
  const char* name;
  std::function<void(ProcessGroup& pair)> body;
  const char* text;         // what the failing rank's error contains besides the names
  int fails = 0;            // the rank of the pair that fails
  bool names_other = true;  // the error is about the other rank
};

void send_floats(ProcessGroup& pair, std::size_t count, std::chrono::milliseconds timeout = 20s) {
  const std::vector<float> data(count);
  pair.send(std::span(data), 1 - pair.rank(), 5, {.timeout = timeout, .keep_alive = nullptr});
}

void recv_floats(ProcessGroup& pair, std::size_t count, int from,
                 std::chrono::milliseconds timeout = 20s) {
  std::vector<float> data(count);
  pair.recv(std::span(data), from, 5, {.timeout = timeout, .keep_alive = nullptr});
}

const std::vector<Row>& rows() {
  static const std::vector<Row> rows = {
      {"send_timeout",
       [](ProcessGroup& pair) {
         if (pair.rank() == 0) send_floats(pair, 4 << 20, 300ms);
         pair.barrier();
       },
       "send of float32 x 4194304 to rank 1 (rank 3 of the world), tag 5 timed out"},
      {"recv_timeout",
       [](ProcessGroup& pair) {
         if (pair.rank() == 0) recv_floats(pair, 10, 1, 300ms);
         pair.barrier();
       },
       "recv of float32 x 10 from rank 1 (rank 3 of the world), tag 5 timed out"},
      {"recv_from_any_timeout",
       [](ProcessGroup& pair) {
         if (pair.rank() == 0) recv_floats(pair, 10, kAnySource, 300ms);
         pair.barrier();
       },
       "recv of float32 x 10 from any rank, tag 5 timed out", 0, false},
      {"message_mismatch",
       [](ProcessGroup& pair) {
         if (pair.rank() == 1) send_floats(pair, 10);
         if (pair.rank() == 0) recv_floats(pair, 11, 1);
         pair.barrier();
       },
       "recv of float32 x 11 from rank 1 (rank 3 of the world), tag 5"},
      {"asynchronous_recv_of_one_that_left",
       [](ProcessGroup& pair) {
         if (pair.rank() != 0) return;
         std::vector<float> data(10);
         pair.irecv(std::span(data), 1, 5)->wait();
       },
       "of group world.0 has left the group; see the output of rank 3"},
      {"collective_timeout",
       [](ProcessGroup& pair) {
         if (pair.rank() == 1) return std::this_thread::sleep_for(1s);  // this rank is late
         std::vector<float> data(10);
         pair.all_reduce(std::span(data), ReduceOp::kSum, {.timeout = 300ms});
       },
       "all_reduce #1"},
      {"collective_mismatch",
       [](ProcessGroup& pair) {
         std::vector<float> data(10 + static_cast<std::size_t>(pair.rank()));
         pair.all_reduce(std::span(data));
       },
       "collectives do not match"},
      {"wrong_argument",
       [](ProcessGroup& pair) {
         if (pair.rank() == 0)
           pair.all_reduce(std::span<float>(), ReduceOp::kSum, {.timeout = 0ms});
       },
       "CollectiveOptions::timeout", 0, false},
      {"abort",
       [](ProcessGroup& pair) {
         if (pair.rank() == 1) pair.abort("the loss is NaN");
         pair.barrier();
       },
       "the loss is NaN"},
  };
  return rows;
}

class RankNames : public testing::TestWithParam<std::tuple<std::size_t, TransportKind>> {};

TEST_P(RankNames, are_of_the_group_and_of_the_world) {
  const Row& row = rows()[std::get<0>(GetParam())];
  const auto results = harness::run_ranks(4,
                                          [&](ProcessGroup& world) {
                                            const auto pair = world.new_group({1, 3});
                                            if (pair->is_member()) row.body(*pair);
                                          },
                                          {.transport = std::get<1>(GetParam())});
  const auto& error = results[row.fails == 0 ? 1 : 3].error;
  ASSERT_TRUE(error);
  const std::string text = error->what();
  EXPECT_THAT(text, StartsWith(kNames[row.fails]));
  EXPECT_THAT(text, HasSubstr(row.text));
  if (row.names_other) {
    EXPECT_THAT(text, HasSubstr(kNames[1 - row.fails]));
  }
  EXPECT_EQ(bare_rank_in(text), "") << text;
}

INSTANTIATE_TEST_SUITE_P(Calls, RankNames,
                         testing::Combine(testing::Range(std::size_t{0}, rows().size()),
                                          testing::Values(TransportKind::kAuto,
                                                          TransportKind::kTcp)),
                         [](const auto& info) {
                           return std::string(rows()[std::get<0>(info.param)].name) + "_" +
                                  std::string(name_of(std::get<1>(info.param)));
                         });

}  // namespace
}  // namespace paceline
