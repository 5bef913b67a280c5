#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>
#include <string>

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "paceline/files/checkpoint/memory_checkpoint.h"

#include "tests/files/checkpoint/error_of.h"
#include "tests/files/checkpoint/peak_memory.h"
#include "tests/files/checkpoint/sample_parts.h"
#include "tests/files/checkpoint/test_directory.h"
#include "tests/harness/borrowed_group.h"
#include "tests/harness/process_ranks.h"
#include "tests/harness/says.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

using harness::borrowed;
using harness::run_ranks_ok;
using harness::Says;
using testing::error_of;
using testing::Held;
using testing::peak_memory;
using testing::TestDirectory;

// Jobs on several hosts: hosts({2, 1}) is two ranks on host "0" and one on host "1". Each host has
// its own memory, path_of(its name).
class MemoryTeamTest : public ::testing::Test {
 protected:
  struct Host {
    std::string name;
    int ranks = 1;
  };
  using Hosts = std::vector<Host>;

  static Hosts hosts(const std::vector<int>& ranks) {
    Hosts all;
    for (const int count : ranks) all.push_back({std::to_string(all.size()), count});
    return all;
  }
  static const Host& host_of(const Hosts& hosts, int rank) {
    std::size_t number = 0;
    while (rank >= hosts[number].ranks) rank -= hosts[number++].ranks;
    return hosts[number];
  }
  std::string path_of(const std::string& host) const { return folder_ / ("memory-" + host); }

  void on(const Hosts& hosts,
          const std::function<void(ProcessGroup& group, MemoryTeam& team)>& body) {
    int world = 0;
    for (const Host& host : hosts) world += host.ranks;
    run_ranks_ok(world,
                 [&](ProcessGroup& group) {
                   MemoryTeam team(borrowed(group), path_of(host_of(hosts, group.rank()).name));
                   body(group, team);
                 },
                 {.adjust = [&](int rank, GroupOptions& group) {
                   group.link.host = host_of(hosts, rank).name;
                 }});
  }

  static bool save(MemoryTeam& team, ProcessGroup& group, std::int64_t step) {
    const Held held(group, step);
    return team.save(step, held.boxes, {.run = "r", .metadata = {{"at", std::to_string(step)}}});
  }
  void save_on(const Hosts& hosts, const std::vector<std::int64_t>& steps) {
    on(hosts, [&](ProcessGroup& group, MemoryTeam& team) {
      for (const std::int64_t step : steps) EXPECT_TRUE(save(team, group, step));
    });
  }
  // Returns the step that was loaded; 0: none.
  static std::int64_t load(MemoryTeam& team, ProcessGroup& group) {
    const auto manifest = team.newest(0, "r");
    if (!manifest) return 0;
    EXPECT_EQ(manifest->metadata.at("at"), std::to_string(manifest->step));
    testing::expect_parts(group, manifest->step,
                          [&](const std::vector<WantedBox>& wanted) { team.read(wanted); });
    return manifest->step;
  }
  void expect_load(const Hosts& hosts, std::int64_t step) {
    on(hosts, [&](ProcessGroup& group, MemoryTeam& team) { EXPECT_EQ(load(team, group), step); });
  }
  void lose(const std::string& host) const { std::filesystem::remove(path_of(host)); }

  // Damages a byte of a file in a host's newest checkpoint.
  void damage(const std::string& host, std::uint32_t file) const {
    const MemoryCheckpoint memory(path_of(host));
    const SealedSlot sealed = memory.sealed().front();
    std::uint64_t position = 0;
    for (const std::uint32_t before : sealed.files) {
      if (before == file) break;
      position += sealed.manifest.files[before].size;
    }
    std::array<std::byte, 1> byte;
    memory.read(sealed, file, 11, byte);
    byte[0] ^= std::byte{0x10};
    MemoryCheckpoint(path_of(host)).write(sealed.slot, position + 11, byte);
  }

  const TestDirectory folder_;
};

TEST_F(MemoryTeamTest, any_hosts_and_ranks_load_what_any_others_saved) {
  for (const std::vector<int>& savers :
       {std::vector{1}, std::vector{3}, std::vector{2, 1}, std::vector{1, 2, 1}}) {
    for (const auto& host : hosts({1, 1, 1})) lose(host.name);
    save_on(hosts(savers), {1, 2, 3});
    expect_load(hosts(savers), 3);
    if (savers.size() < 3) expect_load(hosts({2}), 3);
    expect_load(hosts({1, 1, 2}), 3);
  }
}

TEST_F(MemoryTeamTest, the_loss_of_any_host_loses_nothing) {
  for (const std::vector<int>& ranks : {std::vector{1, 1, 1, 1}, std::vector{2, 1, 3}}) {
    const Hosts all = hosts(ranks);
    for (std::size_t lost = 0; lost < all.size(); ++lost) {
      save_on(all, {4, 5});
      Hosts left = all;
      left.erase(left.begin() + static_cast<std::ptrdiff_t>(lost));
      lose(all[lost].name);
      expect_load(left, 5);
      // The remaining hosts, and one that returns with empty memory, keep the next checkpoints.
      expect_load(all, 5);
      save_on(left, {6});
      expect_load(left, 6);
      for (const Host& host : all) lose(host.name);
    }
  }
}

TEST_F(MemoryTeamTest, two_neighbours_lost_leave_nothing_and_others_everything) {
  const Hosts all = hosts({1, 1, 1, 1});
  save_on(all, {7});
  expect_load({all[0], all[2]}, 7);
  expect_load({all[3], all[1]}, 7);
  expect_load({all[0], all[1]}, 0);
  expect_load({all[3], all[0]}, 0);
  expect_load(all, 7);
}

// Divided and replicated tensors: each of four hosts keeps half of the bytes.
TEST_F(MemoryTeamTest, each_host_keeps_its_share) {
  const auto bytes_of_slots = [&](const Hosts& all) {
    save_on(all, {1, 2});
    std::vector<std::uint64_t> bytes;
    for (const Host& host : all) {
      for (const SealedSlot& sealed : MemoryCheckpoint(path_of(host.name)).sealed()) {
        std::uint64_t sum = 0;
        for (const std::uint32_t file : sealed.files) sum += sealed.manifest.files[file].size;
        bytes.push_back(sum);
      }
      struct stat status {};
      EXPECT_EQ(::stat(path_of(host.name).c_str(), &status), 0);
      const auto two = bytes[bytes.size() - 2] + bytes.back();
      EXPECT_LE(static_cast<std::uint64_t>(status.st_blocks) * 512, two + 64 * 1024);
      lose(host.name);
    }
    return bytes;
  };
  std::uint64_t whole = 0;
  for (const auto& tensor : testing::kTensors)
    whole += static_cast<std::uint64_t>(num_elements(tensor.shape)) * sizeof(float);
  for (const std::vector<int>& few : {std::vector{2}, std::vector{1, 2}}) {
    for (const std::uint64_t bytes : bytes_of_slots(hosts(few))) EXPECT_EQ(bytes, whole);
  }
  for (const std::vector<int>& four : {std::vector{1, 1, 1, 1}, std::vector{2, 2, 2, 2}}) {
    const auto shares = bytes_of_slots(hosts(four));
    ASSERT_EQ(shares.size(), 8U);
    for (const std::uint64_t bytes : shares) EXPECT_NEAR(bytes, whole / 2, whole / 50);
  }
}

TEST_F(MemoryTeamTest, what_is_damaged_comes_from_the_other_host_or_is_passed_over) {
  const Hosts all = hosts({1, 1, 1, 1});
  save_on(all, {1, 2});
  damage("2", 2);
  expect_load(all, 2);
  damage("3", 1 + 1);  // the other copy of the same file
  expect_load(all, 1);
  // The job continues from step 1, whose checkpoint stays until the next one is whole.
  on(all, [&](ProcessGroup& group, MemoryTeam& team) {
    EXPECT_TRUE(save(team, group, 3));
    EXPECT_EQ(load(team, group), 3);
  });
}

TEST_F(MemoryTeamTest, an_incomplete_newest_is_not_taken_and_the_next_save_spares_the_one_before) {
  const Hosts all = hosts({1, 1, 1, 1});
  save_on(all, {1, 2});
  for (const char* host : {"1", "2"}) {  // as if these hosts had died before they sealed it
    MemoryCheckpoint memory(path_of(host));
    memory.unseal(memory.sealed().front().slot);
  }
  expect_load(all, 1);
  const auto newest_of = [&](const std::string& host) {
    return MemoryCheckpoint(path_of(host)).sealed().front().manifest.step;
  };
  for (const Host& host : all) {
    EXPECT_EQ(newest_of(host.name), 1);
    MemoryCheckpoint memory(path_of(host.name));
    memory.open_older();  // begins a save
    EXPECT_EQ(newest_of(host.name), 1);
  }
  expect_load(all, 1);
}

TEST_F(MemoryTeamTest, below_a_step_and_of_another_run_is_nothing) {
  save_on(hosts({2}), {5});
  on(hosts({2}), [](ProcessGroup& group, MemoryTeam& team) {
    EXPECT_FALSE(team.newest(6, "r"));
    EXPECT_FALSE(team.newest(0, "other"));
    EXPECT_TRUE(team.newest(5, ""));
    const auto here = team.newest_here();
    EXPECT_EQ(here.has_value(), group.rank() == 0);
    EXPECT_EQ(here ? here->step : 5, 5);
  });
}

TEST_F(MemoryTeamTest, a_memory_in_use_is_an_error_on_every_rank) {
  MemoryCheckpoint other(path_of("0"));
  other.lock();
  run_ranks_ok(2, [&](ProcessGroup& group) {
    const auto error = error_of([&] { MemoryTeam team(borrowed(group), path_of("0")); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalid);
  });
  run_ranks_ok(2, [&](ProcessGroup& group) {
    const auto path = group.rank() == 1 ? "/nonexistent/file" : path_of("1");
    EXPECT_EQ(error_of([&] { MemoryTeam team(borrowed(group), path); }).code(), ErrorCode::kSystem);
  });
}

TEST_F(MemoryTeamTest, ranks_that_leave_something_out_are_an_error_on_every_rank) {
  on(hosts({1, 1}), [](ProcessGroup& group, MemoryTeam& team) {
    Held held(group, 1);
    if (group.rank() == 1) held.boxes.clear();
    const auto error = error_of([&] { team.save(1, held.boxes, {}); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalid);
    EXPECT_THAT(error.what(), Says("manifest.box_missing"));
  });
}

// Rank 1's replica differs from the digest that the owner states, so no rank takes it for a copy.
TEST_F(MemoryTeamTest, a_second_copy_of_other_bits_is_not_kept) {
  on(hosts({1, 1}), [](ProcessGroup& group, MemoryTeam& team) {
    EXPECT_TRUE(save(team, group, 1));
    Held held(group, 2);
    if (group.rank() == 1) {
      for (auto& values : held.memory) {
        for (float& value : values) value += 1;
      }
    }
    EXPECT_FALSE(team.save(2, held.boxes, {.run = "r", .metadata = {}}));
    EXPECT_EQ(load(team, group), 1);
  });
}

harness::RanksOptions a_host_each() {
  return {.adjust = [](int rank, GroupOptions& group) { group.link.host = std::to_string(rank); }};
}

void limit_files(rlim_t bytes) {
  const rlimit limit{bytes, RLIM_INFINITY};
  setrlimit(RLIMIT_FSIZE, &limit);
}

// Sanitizers need extra memory for each byte.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Each of four ranks has a quarter of 64 MiB, keeps two quarters and gets its own back. Meanwhile
// no rank has another quarter in its own memory.
TEST_F(MemoryTeamTest, no_rank_has_a_copy_of_the_whole_or_of_its_part) {
  constexpr std::int64_t kRows = 4096, kColumns = 4096;
  constexpr std::int64_t kPart = kRows / 4 * kColumns;
  const auto results = harness::run_process_ranks(
      4,
      [&](ProcessGroup& group) {
        MemoryTeam team(borrowed(group), path_of(std::to_string(group.rank())));
        const Box box{{group.rank() * kRows / 4, 0}, {kRows / 4, kColumns}};
        std::vector<float> part(kPart);
        for (std::size_t i = 0; i < part.size(); ++i)
          part[i] = static_cast<float>(i % 1000) + static_cast<float>(group.rank());
        const std::vector<float> expected = part;
        auto* const bytes = reinterpret_cast<std::byte*>(part.data());
        const std::vector<HeldMemory> held{
            {{"t", Dtype::kFloat32, {kRows, kColumns}, box}, {bytes, {kColumns, 1}}}};
        EXPECT_TRUE(team.save(1, held, {.run = "r", .metadata = {}}));
        peak_memory();
        const std::uint64_t before = peak_memory();
        EXPECT_TRUE(team.save(2, held, {.run = "r", .metadata = {}}));
        std::ranges::fill(part, 0.0F);
        EXPECT_TRUE(team.newest(0, "r"));
        team.read({{"t", box, bytes}});
        EXPECT_LT(peak_memory(), before + kPart * sizeof(float));
        EXPECT_TRUE(part == expected);
        return std::string();
      },
      a_host_each());
  for (const auto& result : results) EXPECT_EQ(result.exit_code, 0) << result.report;
}
#endif

// One rank has no room for the checkpoint; the other ranks learn that, and the older checkpoint
// stays.
TEST_F(MemoryTeamTest, memory_that_does_not_suffice_on_one_host_is_told_on_all) {
  const auto results = harness::run_process_ranks(
      3,
      [&](ProcessGroup& group) {
        MemoryTeam team(borrowed(group), path_of(std::to_string(group.rank())));
        signal(SIGXFSZ, SIG_IGN);
        const auto save_without_room = [&](std::int64_t step) {
          if (group.rank() == 1) limit_files(1 << 20);
          EXPECT_FALSE(save(team, group, step));
          EXPECT_EQ(load(team, group), step - 1);
          limit_files(RLIM_INFINITY);
        };
        EXPECT_TRUE(save(team, group, 1));
        save_without_room(2);  // no room for the second slot at all
        EXPECT_TRUE(save(team, group, 2));
        save_without_room(3);  // no room for a part of the data of the first slot
        EXPECT_TRUE(save(team, group, 3));
        EXPECT_EQ(load(team, group), 3);
        return std::string();
      },
      a_host_each());
  for (const auto& result : results) EXPECT_EQ(result.exit_code, 0) << result.report;
}

// With or without the memory of its host, the job continues from the last acknowledged checkpoint
// or, if the rank died at the very end of the save, from the one that was being saved.
TEST_F(MemoryTeamTest, a_rank_that_dies_in_a_save_leaves_a_whole_one) {
  for (const int tenth : {0, 4, 8, 10}) {
    for (const bool loses_memory : {false, true}) {
      const auto results = harness::run_process_ranks(
          3,
          [&](ProcessGroup& group) {
            const std::string path = path_of(std::to_string(group.rank()));
            MemoryTeam team(borrowed(group), path);
            EXPECT_TRUE(save(team, group, 1));
            EXPECT_TRUE(save(team, group, 2));
            if (group.rank() == 1) {
              const SealedSlot sealed = MemoryCheckpoint(path).sealed().front();
              std::uint64_t bytes = 0;
              for (const std::uint32_t file : sealed.files)
                bytes += sealed.manifest.files[file].size;
              const rlimit no_core{0, 0};
              setrlimit(RLIMIT_CORE, &no_core);
              signal(SIGXFSZ, SIG_DFL);  // kills this rank when it writes beyond the limit
              limit_files(4096 + bytes * static_cast<std::uint64_t>(tenth) / 10);
            }
            save(team, group, 3);
            return std::string("saved");
          },
          a_host_each());
      EXPECT_EQ(results[1].signal, SIGXFSZ) << tenth;
      for (const std::size_t survivor : {0, 2}) EXPECT_TRUE(results[survivor].threw) << tenth;
      if (loses_memory) lose("1");
      on(loses_memory ? Hosts{{"0", 1}, {"2", 1}} : hosts({1, 1, 1}),
         [&](ProcessGroup& group, MemoryTeam& team) {
           const std::int64_t step = load(team, group);
           EXPECT_TRUE(step == 2 || (step == 3 && tenth == 10)) << tenth << ": " << step;
         });
      for (const Host& host : hosts({1, 1, 1})) lose(host.name);
    }
  }
}

}  // namespace
}  // namespace paceline
