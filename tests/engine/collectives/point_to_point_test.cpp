#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <future>
#include <memory>
#include <numeric>
#include <thread>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "paceline/engine/core/system/fd.h"
#include "paceline/engine/transport/wire.h"

#include "tests/harness/asleep.h"
#include "tests/harness/expect_error.h"
#include "tests/harness/no_new_threads.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using harness::run_ranks_ok;
using namespace std::chrono_literals;

class PointToPointTest : public testing::TestWithParam<TransportKind> {
 protected:
  void run(int world, const harness::RankBody& body) {
    run_ranks_ok(world, body, {.transport = GetParam()});
  }
};

TEST_P(PointToPointTest, large_messages_in_both_directions_at_once) {
  run(2, [](ProcessGroup& group) {
    const int other = 1 - group.rank();
    std::vector<std::int64_t> mine(1'000'000), theirs(mine.size());
    std::iota(mine.begin(), mine.end(), group.rank());
    const auto sent = group.isend(std::span(mine), other);
    const auto received = group.irecv(std::span(theirs), other);
    sent->wait();
    received->wait();
    EXPECT_EQ(theirs.front(), other);
    EXPECT_EQ(theirs.back(), other + 999'999);
  });
}

TEST_P(PointToPointTest, tags_match_out_of_order_and_messages_of_one_tag_keep_theirs) {
  run(2, [](ProcessGroup& group) {
    if (group.rank() == 0) {
      for (const int value : {1, 2, 3}) group.send(std::span(&value, 1), 1, 7);
      const int special = 99;
      group.send(std::span(&special, 1), 1, 8);
      return;
    }
    int value = 0;
    group.recv(std::span(&value, 1), 0, 8);
    EXPECT_EQ(value, 99);
    for (const int expected : {1, 2, 3}) {
      group.recv(std::span(&value, 1), 0, 7);
      EXPECT_EQ(value, expected);
    }
  });
}

TEST_P(PointToPointTest, any_source_says_who_sent) {
  run(4, [](ProcessGroup& group) {
    if (group.rank() != 0) {
      const int value = group.rank() * 10;
      group.send(std::span(&value, 1), 0);
      return;
    }
    int sum = 0;
    for (int i = 0; i < 3; ++i) {
      int value = 0;
      const int source = group.recv(std::span(&value, 1), kAnySource);
      EXPECT_EQ(value, source * 10);
      sum += source;
    }
    EXPECT_EQ(sum, 6);
  });
}

TEST_P(PointToPointTest, runs_beside_collectives) {
  run(3, [](ProcessGroup& group) {
    const int next = (group.rank() + 1) % 3;
    const int previous = (group.rank() + 2) % 3;
    for (int i = 0; i < 50; ++i) {
      int from_previous = -1;
      const int mine = group.rank() * 1000 + i;
      const auto received = group.irecv(std::span(&from_previous, 1), previous);
      const auto sent = group.isend(std::span(&mine, 1), next);
      EXPECT_EQ(all_reduce_value(group, 1), 3);
      received->wait();
      sent->wait();
      EXPECT_EQ(from_previous, previous * 1000 + i);
    }
  });
}

TEST_P(PointToPointTest, objects_that_a_message_kept_alive_are_free_once_the_group_has_failed) {
  run(2, [](ProcessGroup& group) {
    std::array<int, 3> values{};
    if (group.rank() == 1) {
      group.send(std::span(values), 0, 5);
      group.send(std::span(values), 0, 6);
      EXPECT_THROW(group.recv(std::span(values), 0), Error);  // rank 0 fails
      return;
    }
    auto kept = std::make_shared<std::array<int, 3>>();
    const std::weak_ptr<std::array<int, 3>> seen = kept;
    const auto never = group.irecv(std::span(*kept), 1, 1, {.timeout = {}, .keep_alive = kept});
    kept.reset();
    group.recv(std::span(values), 1, 6);  // the message before it has also arrived and is waiting
    EXPECT_THROW(group.recv(std::span(values).first(2), 1, 5), Error);
    EXPECT_THROW(never->wait(), Error);
    EXPECT_TRUE(seen.expired());
  });
}

TEST_P(PointToPointTest, large_unexpected_messages_are_taken_all_the_same) {
  run(2, [](ProcessGroup& group) {
    const int other = 1 - group.rank();
    std::vector<int> mine(500'000), theirs(mine.size());
    for (int round = 0; round < 5; ++round) {
      std::iota(mine.begin(), mine.end(), group.rank() + round);
      group.send(std::span(mine), other);  // the other rank sends at the same time
      mine.assign(mine.size(), -1);        // the other rank has received it by now
      group.recv(std::span(theirs), other);
      EXPECT_EQ(theirs.front(), other + round);
      EXPECT_EQ(theirs.back(), other + round + 499'999);
    }
  });
}

TEST_P(PointToPointTest, messages_of_all_sizes_keep_their_order) {
  run(2, [](ProcessGroup& group) {
    constexpr std::size_t kSizes[] = {1, 200'000, 0, 40'000, 7, 32'768, 32'767, 300'000};
    std::vector<std::vector<float>> data;
    std::vector<WorkPtr> under_way;
    for (int round = 0; round < 4; ++round) {
      for (const std::size_t size : kSizes) {
        const auto number = static_cast<float>(data.size());
        data.emplace_back(size, group.rank() == 0 ? number : -1);
        const std::span<float> buffer(data.back());
        under_way.push_back(group.rank() == 0 ? group.isend(buffer, 1) : group.irecv(buffer, 0));
      }
    }
    for (const WorkPtr& work : under_way) work->wait();
    for (std::size_t i = 0; i < data.size(); ++i) {
      EXPECT_EQ(std::count(data[i].begin(), data[i].end(), static_cast<float>(i)),
                std::ssize(data[i]));
    }
  });
}

TEST_P(PointToPointTest, threads_that_wait_move_each_others_messages) {
  run(2, [](ProcessGroup& group) {
    const int other = 1 - group.rank();
    std::vector<std::jthread> threads;
    for (std::uint32_t tag = 0; tag < 4; ++tag) {
      threads.emplace_back([&, tag] {
        std::vector<int> mine(60'000), theirs(mine.size());
        for (int round = 0; round < 50; ++round) {
          const int number = 100 * static_cast<int>(tag) + round;
          mine.assign(mine.size(), number);
          const auto sent = group.isend(std::span(mine), other, tag);
          const auto received = group.irecv(std::span(theirs), other, tag);
          received->wait();
          sent->wait();
          EXPECT_EQ(theirs.front(), number);
          EXPECT_EQ(theirs.back(), number);
        }
      });
    }
  });
}

TEST_P(PointToPointTest, a_wait_with_a_limit_ends_there_and_the_message_comes_later) {
  run(2, [](ProcessGroup& group) {
    std::vector<int> values(200'000, group.rank());
    int go_on = 0;
    if (group.rank() == 0) {
      const auto received = group.irecv(std::span(values), 1);
      expect_error(ErrorCode::kTimeout, {"recv of int32 x 200000", "continues"},
                   [&] { received->wait(50ms); });
      group.send(std::span(&go_on, 1), 1);
      received->wait();
      EXPECT_EQ(values.back(), 1);
      return;
    }
    group.recv(std::span(&go_on, 1), 0);
    group.send(std::span(values), 0);
  });
}

// Rank 0 never waits for a message, and yet the engine receives what arrives.
TEST_P(PointToPointTest, a_large_message_is_taken_beside_small_ones_all_the_time) {
  std::atomic<bool> has_arrived = false;
  run(2, [&](ProcessGroup& group) {
    std::vector<int> large(300'000, 1);
    int small = 0;
    // Rank 0 shows that it can read memory that rank 1 offers.
    if (group.rank() == 1) group.send(std::span(&small, 1), 0);
    if (group.rank() == 0) group.recv(std::span(&small, 1), 1);
    std::jthread sender;
    const auto deadline = Deadline::after(18s);
    for (int round = 0; small == 0; ++round) {
      if (group.rank() == 0) {
        small = has_arrived || deadline.expired() ? 1 : 0;
        group.send(std::span(&small, 1), 1);
        // This is slow enough that there is always room for the next message.
        std::this_thread::sleep_for(20us);
        continue;
      }
      group.recv(std::span(&small, 1), 0);
      if (round != 10) continue;  // from now on rank 0 waits for nothing
      sender = std::jthread([&] {
        EXPECT_NO_THROW(group.send(std::span(large), 0, 9, {.timeout = 15s}));
        has_arrived = true;
      });
    }
    EXPECT_TRUE(has_arrived);
    if (group.rank() == 0) group.recv(std::span(large), 1, 9);
  });
}

// A message must not arrive after its sender was told that it failed, although its bytes are still
// there.
TEST_P(PointToPointTest, a_message_that_was_given_up_is_not_received) {
  std::promise<void> given_up;
  run(2, [&](ProcessGroup& group) {
    std::vector<int> values(2'000'000);
    if (group.rank() == 0) {
      expect_error(ErrorCode::kTimeout, {"send of int32 x 2000000", "does not receive it"},
                   [&] { group.send(std::span(values), 1, 0, {.timeout = 100ms}); });
      given_up.set_value();
      return;
    }
    given_up.get_future().wait();
    EXPECT_THROW(group.recv(std::span(values), 0), Error);
  });
}

// Memory of a device may be like that; here it is memory that the kernel hides from all other
// processes.
TEST_P(PointToPointTest, memory_that_only_its_process_can_read_is_sent_too) {
  constexpr std::size_t kBytes = 1 << 20;
  const int file = static_cast<int>(syscall(SYS_memfd_secret, 0));
  if (file < 0) GTEST_SKIP() << "this kernel has no memfd_secret: " << std::strerror(errno);
  const Fd owner(file);
  ASSERT_EQ(ftruncate(file, kBytes), 0);
  void* const place = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (place == MAP_FAILED) GTEST_SKIP() << "no locked memory: " << std::strerror(errno);
  const std::span<int> secret(static_cast<int*>(place), kBytes / sizeof(int));
  std::iota(secret.begin(), secret.end(), 0);
  run(2, [&](ProcessGroup& group) {
    std::vector<int> values(secret.size());
    for (int round = 0; round < 3; ++round) {
      if (group.rank() == 0) {
        group.recv(std::span(values), 1);  // shows whether this rank can read the sender's memory
        group.recv(std::span(values), 1);
        EXPECT_TRUE(std::equal(values.begin(), values.end(), secret.begin()));
      } else {
        group.send(std::span(values), 0);
        group.send(secret, 0);
      }
    }
  });
  munmap(place, kBytes);
}

TEST_P(PointToPointTest, another_length_is_an_error_of_both) {
  run(2, [](ProcessGroup& group) {
    std::vector<int> values(4'000'000);
    if (group.rank() == 0) {
      EXPECT_THROW(group.send(std::span(values), 1), Error);
      return;
    }
    expect_error(ErrorCode::kInvalid, {"recv of int32 x 199999", "sent int32 x 4000000"},
                 [&] { group.recv(std::span(values).first(199'999), 0); });
  });
}

TEST_P(PointToPointTest, a_wait_ends_with_the_group) {
  run(2, [](ProcessGroup& group) {
    if (group.rank() == 1) {
      EXPECT_THROW(group.barrier(), Error);  // rank 0 gives up
      return;
    }
    std::vector<int> values(200'000);
    const auto received = group.irecv(std::span(values), 1);
    std::atomic<pid_t> waiter = 0;
    std::jthread waiting([&] {
      waiter = gettid();
      expect_error(ErrorCode::kAborted, {}, [&] { received->wait(); });
    });
    harness::wait_until_asleep(waiter);
    group.abort("enough");
  });
}

TEST_P(PointToPointTest, a_function_that_is_called_with_a_message_sends_the_reply) {
  run(2, [](ProcessGroup& group) {
    const int other = 1 - group.rank();
    int question = 1, reply = 2;
    if (group.rank() == 1) {
      for (int round = 0; round < 3; ++round) {
        group.send(std::span(&question, 1), 0);
        group.recv(std::span(&reply, 1), 0, 1);
      }
      group.send(std::span(&question, 1), 0, 2);
      return;
    }
    std::promise<void> called[3];
    const auto expect_question = [&](std::promise<void>& is_called) {
      const auto work = group.irecv(std::span(&question, 1), other);
      work->on_complete([&](const Error* error) {
        EXPECT_EQ(error, nullptr);
        group.isend(std::span(&reply, 1), other, 1);
        is_called.set_value();
      });
      return work;
    };
    expect_question(called[0])->wait();
    expect_question(called[1]);  // the group's thread moves this message
    called[1].get_future().wait();
    expect_question(called[2]);  // this thread does, while it waits for a later one
    group.recv(std::span(&reply, 1), other, 2);
    called[2].get_future().wait();
  });
}

TEST_P(PointToPointTest, a_function_that_is_called_with_the_failure_may_use_the_group) {
  run(2, [](ProcessGroup& group) {
    if (group.rank() == 1) {
      EXPECT_THROW(group.barrier(), Error);  // rank 0 gives up
      return;
    }
    int value = 0;
    bool is_called = false;
    const auto received = group.irecv(std::span(&value, 1), 1);
    received->on_complete([&](const Error* error) {
      EXPECT_NE(error, nullptr);
      EXPECT_THROW(group.isend(std::span(&value, 1), 1), Error);
      is_called = true;
    });
    EXPECT_THROW(group.recv(std::span(&value, 1), 1, 1, {.timeout = 100ms}), Error);
    EXPECT_TRUE(is_called);
    EXPECT_THROW(received->wait(), Error);
  });
}

TEST_P(PointToPointTest, a_function_that_is_called_with_a_message_may_end_the_group) {
  run(2, [](ProcessGroup& world) {
    auto group = world.new_group({0, 1});
    int value = 7;
    if (group->rank() == 1) {
      group->send(std::span(&value, 1), 0);
      world.barrier();
      world.barrier();  // rank 0 has ended its group: it must not lose this rank's first
      return;
    }
    const auto never = group->irecv(std::span(&value, 1), 1, 1);
    const auto received = group->irecv(std::span(&value, 1), 1);
    std::promise<void> is_over;
    received->on_complete([&, last = std::move(group)](const Error*) mutable {
      last.reset();
      is_over.set_value();
    });
    world.barrier();
    expect_error(ErrorCode::kAborted, {"was destroyed"}, [&] { never->wait(); });
    is_over.get_future().wait();
    received->wait();
    world.barrier();
  });
}

TEST_P(PointToPointTest, a_message_that_needs_a_thread_which_cannot_be_started_fails) {
  run(2, [](ProcessGroup& group) {
    int value = 0;
    if (group.rank() == 1) {
      EXPECT_THROW(group.recv(std::span(&value, 1), 0), Error);  // rank 0 fails
      return;
    }
    WorkPtr received;
    {
      const harness::NoNewThreads none;
      received = group.irecv(std::span(&value, 1), 1);
    }
    expect_error(ErrorCode::kSystem, {"moving the messages", "failed"},
                 [&] { received->wait(10s); });
  });
}

INSTANTIATE_TEST_SUITE_P(Transports, PointToPointTest,
                         testing::Values(TransportKind::kLoopback, TransportKind::kShm,
                                         TransportKind::kTcp),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace paceline
