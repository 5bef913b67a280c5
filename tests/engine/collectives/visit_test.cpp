// Failures in a visit, and how its blocks are cut. conformance.cpp tests that visits work.

#include <array>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "paceline/engine/collectives/call.h"
#include "paceline/engine/collectives/group/engine_group.h"

#include "tests/harness/expect_error.h"
#include "tests/harness/says.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using harness::run_ranks_ok;
using harness::Says;
using testing::AllOf;
using testing::HasSubstr;

TEST(VisitedBlock, covers_every_element_once_from_whole_cache_lines) {
  for (const Dtype dtype : {Dtype::kFloat32, Dtype::kFloat64, Dtype::kUint8, Dtype::kBfloat16}) {
    for (const std::size_t count : {0, 1, 15, 16, 17, 64, 1000, 4096, 100'003}) {
      for (const int world : {1, 2, 3, 7, 64}) {
        std::size_t next = 0;
        for (int rank = 0; rank < world; ++rank) {
          const auto [begin, length] = visited_block(count, dtype, rank, world);
          EXPECT_EQ(begin, next);
          EXPECT_TRUE(length == 0 || begin * size_of(dtype) % 64 == 0);
          next = begin + length;
        }
        EXPECT_EQ(next, count);
      }
    }
  }
  EXPECT_EQ(visited_block(SIZE_MAX, Dtype::kUint8, 1, 2).begin, std::size_t{1} << 63U);
}

class VisitTest : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Memory, VisitTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "symmetric" : "ordinary"; });

// A body may throw any type.
TEST_P(VisitTest, whose_body_throws_no_exception_of_the_standards_ends_everywhere_too) {
  for (const bool is_asynchronous : {false, true}) {
    const auto results = harness::run_ranks(3, [&](ProcessGroup& group) {
      std::vector<float> ordinary(1000);
      const auto symmetric = group.allocate_symmetric(1000 * sizeof(float));
      const auto data = GetParam() ? symmetric.as<float>() : std::span(ordinary);
      const VisitBody body = [&](const Visit&) {
        if (group.rank() == 1) throw 42;
      };
      try {
        is_asynchronous ? engine(group).start_visit(data, body)->wait()
                        : engine(group).visit(data, body);
      } catch (int thrown) {
        EXPECT_EQ(thrown, 42);
        EXPECT_EQ(group.rank(), 1);
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), Says("error.not_an_exception", "int"));
      }
      group.barrier();
    });
    for (const auto& [error] : results) {
      ASSERT_TRUE(error);
      EXPECT_THAT(error->what(),
                  AllOf(Says("visit.body_threw"), Says("error.not_an_exception", "int")));
    }
  }
}

TEST_P(VisitTest, whose_body_throws_ends_everywhere) {
  const auto results = harness::run_ranks(3, [&](ProcessGroup& group) {
    std::vector<float> ordinary(1000);
    const auto symmetric = group.allocate_symmetric(1000 * sizeof(float));
    const auto data = GetParam() ? symmetric.as<float>() : std::span(ordinary);
    try {
      engine(group).visit(data, [&](const Visit&) {
        if (group.rank() == 1) throw std::out_of_range("no such expert");
      });
    } catch (const std::out_of_range& error) {
      EXPECT_EQ(group.rank(), 1);
      EXPECT_STREQ(error.what(), "no such expert");
    }
    group.barrier();
  });
  for (const auto& [error] : results) {
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::kAborted);
    EXPECT_THAT(error->what(),
                AllOf(Says("visit.body_threw", "rank 1"), HasSubstr("no such expert")));
  }
}

TEST_P(VisitTest, of_other_buffers_elsewhere_is_refused_with_both) {
  const auto results = harness::run_ranks(2, [&](ProcessGroup& group) {
    const std::size_t count = group.rank() == 0 ? 1000 : 1001;
    std::vector<float> ordinary(count);
    const auto symmetric = group.allocate_symmetric(8192);
    engine(group).visit(GetParam() ? symmetric.as<float>().first(count) : std::span(ordinary),
                        [](const Visit&) { FAIL() << "the ranks do not mean the same"; });
  });
  for (const auto& [error] : results) {
    ASSERT_TRUE(error);
    EXPECT_EQ(error->operation(), "visit");
    EXPECT_THAT(error->what(), AllOf(HasSubstr("float32 x 1000"), HasSubstr("float32 x 1001")));
  }
}

TEST_P(VisitTest, cannot_use_its_group_in_the_body) {
  run_ranks_ok(2, [&](ProcessGroup& group) {
    std::vector<float> ordinary(1000);
    const auto symmetric = group.allocate_symmetric(1000 * sizeof(float));
    WorkPtr later;
    const auto data = GetParam() ? symmetric.as<float>() : std::span(ordinary);
    for (const bool is_async : {false, true}) {
      const auto body = [&](const Visit&) {
        expect_error(ErrorCode::kInvalid, {"in the body of a visit in group world"},
                     [&] { group.barrier(); });
        later = group.barrier({.async_op = true});  // runs after the visit
      };
      is_async ? engine(group).start_visit(data, body)->wait() : engine(group).visit(data, body);
      later->wait();
    }
  });
}

TEST(Visit, refuses_what_it_cannot_see) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    const auto body = [](const Visit&) {};
    expect_error(ErrorCode::kInvalid, {"visit: a buffer is null"},
                 [&] { engine(group).visit(Buffer(nullptr, 4, Dtype::kFloat32), body); });
    std::array<float, 4> data{};
    Buffer buffer(std::span<float>(data.data(), data.size()));
    buffer.device = Device::kCuda;
    expect_error(ErrorCode::kUnsupported, {"visit", "CUDA"},
                 [&] { engine(group).visit(buffer, body); });
    group.barrier();
  });
}

}  // namespace
}  // namespace paceline
