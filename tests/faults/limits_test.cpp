// Machines that give less than a group wants: the sums stay right, or the error names the
// resource that is missing.

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "paceline/engine/core/system/resource_limits.h"

#include "tests/harness/expect_error.h"
#include "tests/harness/process_ranks.h"
#include "tests/harness/says.h"
#include "tests/harness/tiny_dev_shm.h"

namespace paceline {
namespace {

using harness::ProcessResult;
using harness::run_process_ranks;
using harness::Says;
using namespace std::chrono_literals;

// Returns the transport if all sums are right, both staged and in symmetric memory.
std::string sum_and_say_transport(ProcessGroup& group) {
  const auto symmetric = group.allocate_symmetric(100'000 * sizeof(float));
  std::vector<float> plain(100'000);
  for (const std::span<float> data : {std::span(plain), symmetric.as<float>()}) {
    for (int i = 0; i < 5; ++i) {
      std::fill(data.begin(), data.end(), static_cast<float>(group.rank() + 1));
      group.all_reduce(data);
      const float total = static_cast<float>(group.world_size() * (group.world_size() + 1)) / 2;
      for (const float value : data) {
        if (value != total) return "a wrong sum: " + std::to_string(value);
      }
    }
  }
  return group.transport();
}

void limit(int resource, rlim_t value) {
  const rlimit limit{value, value};
  ASSERT_EQ(setrlimit(static_cast<__rlimit_resource_t>(resource), &limit), 0);
}

void expect_all_report(const std::vector<ProcessResult>& results, const std::string& wanted) {
  for (const auto& result : results) EXPECT_EQ(result.report, wanted) << result.signal;
}

TEST(Limits, a_tiny_dev_shm_does_not_matter) {
  const auto results =
      run_process_ranks(3,
                        [](ProcessGroup& group) {
                          const auto transport = sum_and_say_transport(group);
                          std::stringstream maps;
                          maps << std::ifstream("/proc/self/maps").rdbuf();
                          EXPECT_NE(maps.str().find("/memfd:paceline"), std::string::npos);
                          EXPECT_EQ(maps.str().find("/dev/shm/"), std::string::npos);
                          return transport;
                        },
                        {.transport = TransportKind::kShm, .before_connect = [](int) {
                           // If /dev/shm cannot be made tiny, it must be enough that nothing in it
                           // is mapped.
                           const bool tiny = harness::make_dev_shm_tiny();
                           EXPECT_TRUE(tiny || geteuid() != 0 || getenv("CI") != nullptr);
                         }});
  expect_all_report(results, "shm");
}

class Refused : public testing::TestWithParam<int> {};

// The number of bytes in shared files that have no pages yet. If memory is short, the first access
// to such a byte raises SIGBUS.
std::string shared_bytes_without_memory() {
  std::ifstream maps("/proc/self/maps");
  std::int64_t total = 0, missing = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("/memfd:paceline") == std::string::npos) continue;
    struct stat status {};
    const std::string file = "/proc/self/map_files/" + line.substr(0, line.find(' '));
    if (::stat(file.c_str(), &status) != 0) return file + ": " + std::strerror(errno);
    total += status.st_size;
    missing += status.st_size - std::min<std::int64_t>(status.st_size, status.st_blocks * 512);
  }
  return total == 0 ? "none is shared" : std::to_string(missing);
}

// Checks the areas and rings of a group, and symmetric memory, before anything is sent.
TEST(Limits, shared_memory_has_all_its_pages_before_its_first_use) {
  if (::geteuid() != 0) GTEST_SKIP() << "files of mappings need root";
  for (const int world : {2, 3, 4}) {
    expect_all_report(run_process_ranks(world,
                                        [](ProcessGroup& group) {
                                          const std::string of_group =
                                              shared_bytes_without_memory();
                                          const auto memory = group.allocate_symmetric(5 << 20);
                                          group.barrier();
                                          return of_group + ", " + shared_bytes_without_memory();
                                        }),
                      "0, 0");
  }
}

TEST_P(Refused, shared_memory_on_some_ranks_means_sockets_on_all_with_one_warning) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const auto results = run_process_ranks(
      3, sum_and_say_transport, {.transport = TransportKind::kShm, .before_connect = [&](int rank) {
                                   ::dup2(ends[1], STDERR_FILENO);
                                   if (GetParam() == rank || GetParam() < 0)
                                     limit(RLIMIT_FSIZE, 64 << 10);
                                 }});
  ::close(ends[1]);
  std::string errors(65536, '\0');
  errors.resize(static_cast<std::size_t>(::read(ends[0], errors.data(), errors.size())));
  ::close(ends[0]);
  expect_all_report(results, "tcp");
  const auto warning = Says("forming.sockets_instead", "rank 0", std::max(GetParam(), 0));
  int warnings = 0;
  std::istringstream lines(errors);
  for (std::string line; std::getline(lines, line);) warnings += testing::Value(line, warning);
  EXPECT_EQ(warnings, 1) << errors;
  EXPECT_THAT(errors, testing::HasSubstr("File too large"));
}

INSTANTIATE_TEST_SUITE_P(Ranks, Refused, testing::Values(-1, 0, 1, 2), [](const auto& info) {
  return info.param < 0 ? std::string("all") : "rank_" + std::to_string(info.param);
});

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(Limits, address_space_that_is_too_small_on_one_rank_means_sockets_on_all) {
  const auto results = run_process_ranks(
      2,
      [](ProcessGroup& group) {
        float value = 1;
        group.all_reduce(std::span(&value, 1));
        return std::to_string(static_cast<int>(value)) + group.transport();
      },
      {.transport = TransportKind::kShm, .before_connect = [](int rank) {
         std::size_t pages = 0;
         std::ifstream("/proc/self/statm") >> pages;
         // Leaves room for small allocations, but not for two times half a megabyte.
         if (rank == 1) {
           limit(RLIMIT_AS,
                 pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)) + (700 << 10));
         }
       }});
  expect_all_report(results, "2tcp");
}

// Even where no memory is shared, a rank that cannot allocate its own part is an error on all
// ranks.
TEST(Limits, symmetric_memory_that_one_rank_cannot_get_is_every_ranks_error) {
  for (const auto transport : {TransportKind::kShm, TransportKind::kTcp}) {
    const auto results = run_process_ranks(
        3,
        [](ProcessGroup& group) {
          if (group.rank() == 1) {
            std::size_t pages = 0;
            std::ifstream("/proc/self/statm") >> pages;
            limit(RLIMIT_AS,
                  pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)) + (50 << 20));
          }
          for (const bool is_present : {true, false}) {
            try {
              is_present ? group.allocate_symmetric(200 << 20) : group.reserve_symmetric(200 << 20);
              ADD_FAILURE() << "rank " << group.rank() << " got it";
            } catch (const Error& error) {
              EXPECT_EQ(error.code(), ErrorCode::kSystem);
              EXPECT_EQ(error.operation(), "allocate_symmetric") << error.what();
              EXPECT_THAT(error.what(),
                          testing::AllOf(Says("memory.part_not_got", 1),
                                         testing::HasSubstr("Cannot allocate memory")));
            }
          }
          return std::to_string(all_reduce_value(group, 1));
        },
        {.transport = transport});
    expect_all_report(results, "3");
  }
}
#endif

// Without the check the kernel would hand out pages until it kills a process. The part of one rank
// would fit into memory; the parts of both do not.
TEST(Limits, symmetric_memory_that_the_machine_does_not_have_is_refused_on_every_rank) {
  const auto room = memory_room();
  ASSERT_TRUE(room);
  for (const auto transport : {TransportKind::kShm, TransportKind::kTcp}) {
    const auto results = run_process_ranks(
        2,
        [&](ProcessGroup& group) {
          for (const std::size_t bytes : {room->bytes / 4 * 3, std::size_t{1} << 50}) {
            expect_error(ErrorCode::kSystem, {std::to_string(bytes) + " bytes", "left"},
                         [&] { group.allocate_symmetric(bytes); });
          }
          const auto fits = group.allocate_symmetric(64 << 20);  // is checked in the same way
          group.all_reduce(fits.as<float>().first(1000));
          return std::string(testing::Test::HasFailure() ? "failed" : "refused");
        },
        {.transport = transport});
    expect_all_report(results, "refused");
  }
}

// The error on every rank names the rank that ran out, its operation, and the remedy.
TEST(Limits, descriptors_that_run_out_are_told_with_rank_and_remedy) {
  for (const auto transport : {TransportKind::kShm, TransportKind::kTcp}) {
    const auto results = run_process_ranks(3,
                                           [](ProcessGroup& group) {
                                             if (group.rank() == 1) limit(RLIMIT_NOFILE, 64);
                                             std::vector<std::shared_ptr<ProcessGroup>> groups;
                                             for (int i = 0; i < 60; ++i)
                                               groups.push_back(group.split(0, group.rank()));
                                             return std::string("none ran out");
                                           },
                                           {.transport = transport, .group_timeout = 5s});
    for (const auto& result : results) {
      EXPECT_TRUE(result.threw);
      // Begins with "rank 1: forming group world.9", or with "rank 1: connecting to rank 0 (box) of
      // group world.9".
      EXPECT_NE(result.report.find("rank 1: "), std::string::npos) << result.report;
      EXPECT_NE(result.report.find("group world."), std::string::npos) << result.report;
      EXPECT_THAT(result.report, Says("system.too_many_files", 64));
    }
  }
}

TEST(Limits, sixty_four_descriptors_are_enough_for_four_ranks) {
  for (const auto transport : {TransportKind::kShm, TransportKind::kTcp}) {
    const auto results = run_process_ranks(
        4, sum_and_say_transport,
        {.transport = transport, .before_connect = [](int) { limit(RLIMIT_NOFILE, 64); }});
    expect_all_report(results, transport == TransportKind::kShm ? "shm" : "tcp");
  }
}

TEST(Limits, too_few_descriptors_are_a_typed_error_on_every_rank) {
  for (int descriptors = 8; descriptors < 30; ++descriptors) {
    const auto results = run_process_ranks(
        3, sum_and_say_transport,
        {.transport = TransportKind::kShm, .group_timeout = 3s, .before_connect = [&](int rank) {
           if (rank == 1) limit(RLIMIT_NOFILE, static_cast<rlim_t>(descriptors));
         }});
    for (const auto& result : results) {
      EXPECT_EQ(result.signal, 0) << descriptors << ": " << result.report;
      const bool summed = result.report == "shm" || result.report == "tcp";
      EXPECT_TRUE(result.threw || summed) << descriptors << ": " << result.report;
    }
    if (results[1].threw && results[1].code == ErrorCode::kSystem) {
      EXPECT_NE(results[1].report.find("Too many open files"), std::string::npos)
          << results[1].report;
    }
  }
}

}  // namespace
}  // namespace paceline
