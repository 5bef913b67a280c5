#include "paceline/files/checkpoint/checkpoint_team.h"

#include <atomic>
#include <cstring>
#include <filesystem>
#include <functional>
#include <optional>

#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include "tests/files/checkpoint/error_of.h"
#include "tests/files/checkpoint/peak_memory.h"
#include "tests/files/checkpoint/real_file_system.h"
#include "tests/files/checkpoint/sample_parts.h"
#include "tests/files/checkpoint/slow_file_system.h"
#include "tests/files/checkpoint/test_directory.h"
#include "tests/harness/borrowed_group.h"
#include "tests/harness/process_ranks.h"
#include "tests/harness/says.h"
#include "tests/harness/thread_ranks.h"

namespace paceline {
namespace {

namespace fs = std::filesystem;
using harness::borrowed;
using harness::run_process_ranks;
using harness::run_ranks_ok;
using harness::Says;
using ::testing::ElementsAre;
using testing::error_of;
using testing::expect_parts;
using ::testing::HasSubstr;
using testing::Held;
using testing::RealFileSystem;
using testing::SlowFileSystem;
using testing::TestDirectory;

void save(CheckpointTeam& team, ProcessGroup& group, std::int64_t step) {
  const Held held(group, step);
  team.save(step, held.boxes, {.run = "r", .metadata = {{"step", std::to_string(step)}}});
}

void expect_loaded(CheckpointTeam& team, ProcessGroup& group, const std::string& path,
                   std::int64_t step) {
  const Manifest manifest = CheckpointDirectory(path, {.read_only = true}).read_manifest(step);
  expect_parts(group, step,
               [&](const std::vector<WantedBox>& wanted) { team.read(manifest, wanted); });
}

TEST(CheckpointTeam, any_number_of_ranks_loads_what_any_other_saved) {
  for (const int savers : {1, 2, 3, 5}) {
    const TestDirectory folder;
    run_ranks_ok(savers, [&](ProcessGroup& group) {
      CheckpointTeam team(borrowed(group), folder.path(), {.keep = 2});
      for (const std::int64_t step : {1, 2, 3}) save(team, group, step);
      EXPECT_FALSE(team.finish());
    });
    const CheckpointDirectory directory(folder.path(), {.read_only = true});
    EXPECT_THAT(directory.list(), ElementsAre(2, 3));
    EXPECT_EQ(directory.read_manifest(3).world_size, savers);
    EXPECT_EQ(directory.read_manifest(3).files.size(), static_cast<std::size_t>(savers));
    directory.verify(3);
    for (const int loaders : {1, 2, 4}) {
      run_ranks_ok(loaders, [&](ProcessGroup& group) {
        CheckpointTeam team(borrowed(group), folder.path(), {});
        expect_loaded(team, group, folder.path(), 3);
      });
    }
  }
}

// A file system on which the directory's files cannot be found.
class BlindFileSystem final : public FileSystem {
 public:
  int open(const std::string&, int, mode_t) override { return none(); }
  ssize_t read_at(int, off_t, std::span<std::byte>) override { return none(); }
  ssize_t write(int, std::span<const std::byte>) override { return none(); }
  int fsync(int) override { return none(); }
  int close(int) override { return none(); }
  int mkdir(const std::string&, mode_t) override { return none(); }
  int rename(const std::string&, const std::string&) override { return none(); }
  int exchange(const std::string&, const std::string&) override { return none(); }
  int unlink(const std::string&) override { return none(); }
  int rmdir(const std::string&) override { return none(); }

 private:
  static int none() {
    errno = ENOENT;
    return -1;
  }
};

TEST(CheckpointTeam, ranks_that_do_not_see_the_directory_save_and_load_by_rank_0) {
  const TestDirectory folder;
  run_ranks_ok(4, [&](ProcessGroup& group) {
    BlindFileSystem blind;
    FileSystem& files = group.rank() % 2 == 1 ? blind : FileSystem::real();
    CheckpointTeam team(borrowed(group), folder.path(), {}, files);
    for (const std::int64_t step : {1, 2}) save(team, group, step);
    EXPECT_FALSE(team.finish());
    group.barrier();
    expect_loaded(team, group, folder.path(), 2);
  });
  CheckpointDirectory(folder.path(), {.read_only = true}).verify(2);
}

TEST(CheckpointTeam, a_damaged_file_is_an_error_on_every_rank) {
  const TestDirectory folder;
  run_ranks_ok(3, [&](ProcessGroup& group) {
    CheckpointTeam team(borrowed(group), folder.path(), {});
    save(team, group, 1);
    EXPECT_FALSE(team.finish());
    group.barrier();
    if (group.rank() == 0) fs::resize_file(folder / "step-00000001/boxes-00002-of-00003.bin", 7);
    group.barrier();
    const auto error = error_of([&] { expect_loaded(team, group, folder.path(), 1); });
    EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
    EXPECT_THAT(error.what(), HasSubstr("boxes-00002-of-00003.bin"));
  });
}

TEST(CheckpointTeam, returns_while_the_disk_still_works_and_the_memory_may_change) {
  const TestDirectory folder;
  SlowFileSystem files;
  files.hold();
  run_ranks_ok(2, [&](ProcessGroup& group) {
    CheckpointTeam team(borrowed(group), folder.path(), {},
                        group.rank() == 1 ? static_cast<FileSystem&>(files) : FileSystem::real());
    Held held(group, 1);
    team.save(1, held.boxes, {});
    for (auto& values : held.memory) std::ranges::fill(values, -1.0F);
    group.barrier();
    EXPECT_FALSE(fs::exists(folder / "step-00000001"));
    files.let_go();
    EXPECT_FALSE(team.finish());
    group.barrier();
    expect_loaded(team, group, folder.path(), 1);
  });
}

// A disk on which the first `times` writes fail.
class FullFileSystem final : public RealFileSystem {
 public:
  FullFileSystem(int times, int error_number) : times_(times), error_number_(error_number) {}
  ssize_t write(int fd, std::span<const std::byte> bytes) override {
    if (times_-- <= 0) return real().write(fd, bytes);
    errno = error_number_;
    return -1;
  }

 private:
  int times_;
  const int error_number_;
};

// On one rank of three, the first `times` writes of step 3 fail.
void save_with_failures(const std::string& path, int times, int error_number,
                        const std::function<void(CheckpointTeam& team)>& on_rank_0) {
  run_ranks_ok(3, [&](ProcessGroup& group) {
    {
      CheckpointTeam team(borrowed(group), path, {.keep = 3});
      for (const std::int64_t step : {1, 2}) save(team, group, step);
      EXPECT_FALSE(team.finish());
    }
    group.barrier();
    FullFileSystem full(times, error_number);
    CheckpointTeam team(borrowed(group), path, {.keep = 3},
                        group.rank() == 1 ? static_cast<FileSystem&>(full) : FileSystem::real());
    save(team, group, 3);
    if (group.rank() == 0) on_rank_0(team);
    if (group.rank() != 0) {
      EXPECT_FALSE(team.finish());
    }
    save(team, group, 4);
    EXPECT_FALSE(team.finish());
    group.barrier();
    expect_loaded(team, group, path, 4);
  });
}

TEST(CheckpointTeam, a_disk_that_is_full_for_one_rank_costs_the_oldest) {
  const TestDirectory folder;
  save_with_failures(folder.path(), 1, ENOSPC, [&](CheckpointTeam& team) {
    EXPECT_FALSE(team.finish());
    EXPECT_THAT(team.directory()->list(), ElementsAre(2, 3));
    EXPECT_EQ(team.directory()->room(), 2);
  });
}

TEST(CheckpointTeam, a_disk_that_stays_full_costs_this_checkpoint_and_is_told) {
  const TestDirectory folder;
  save_with_failures(folder.path(), 2, ENOSPC, [&](CheckpointTeam& team) {
    const auto error = team.finish();
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), HasSubstr("boxes-00001-of-00003.bin: cannot write"));
    EXPECT_THAT(error->what(), HasSubstr("No space left on device"));
    EXPECT_THAT(team.directory()->list(), ElementsAre(2));
  });
}

TEST(CheckpointTeam, a_disk_that_fails_on_one_rank_leaves_the_older_ones) {
  const TestDirectory folder;
  save_with_failures(folder.path(), 1, EIO, [&](CheckpointTeam& team) {
    const auto error = team.finish();
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), HasSubstr("Input/output error"));
    EXPECT_THAT(team.directory()->list(), ElementsAre(1, 2));
  });
}

// Kills its process before write number `writes`, counted from 0.
class KillingFileSystem final : public RealFileSystem {
 public:
  explicit KillingFileSystem(int writes) : writes_(writes) {}
  ssize_t write(int fd, std::span<const std::byte> bytes) override {
    if (writes_-- == 0) ::raise(SIGKILL);
    return real().write(fd, bytes);
  }

 private:
  int writes_;
};

TEST(CheckpointTeam, a_rank_killed_in_the_middle_of_a_save_leaves_the_older_one) {
  for (const int victim : {0, 1}) {
    for (const int writes : {0, 1, 2}) {
      const TestDirectory folder;
      const auto results = run_process_ranks(2, [&](ProcessGroup& group) {
        {
          CheckpointTeam team(borrowed(group), folder.path(), {});
          save(team, group, 1);
          EXPECT_FALSE(team.finish());
        }
        group.barrier();
        // On rank 0 one more write belongs to the writer's claim.
        KillingFileSystem killing(victim == 0 ? writes + 1 : writes);
        FileSystem& files =
            group.rank() == victim ? static_cast<FileSystem&>(killing) : FileSystem::real();
        CheckpointTeam team(borrowed(group), folder.path(), {}, files);
        save(team, group, 2);
        if (const auto error = team.finish()) throw *error;
        group.barrier();
        return std::string("saved");
      });
      EXPECT_EQ(results[static_cast<std::size_t>(victim)].signal, SIGKILL);
      const auto& survivor = results[static_cast<std::size_t>(1 - victim)];
      EXPECT_TRUE(survivor.threw) << survivor.report;
      run_ranks_ok(1, [&](ProcessGroup& group) {
        CheckpointTeam team(borrowed(group), folder.path(), {});
        EXPECT_THAT(team.directory()->list(), ElementsAre(1));
        expect_loaded(team, group, folder.path(), 1);
      });
    }
  }
}

// Sanitizers need extra memory for each byte.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// Each rank has a quarter of 64 MiB. A save needs memory for a copy of the quarter; a load needs
// almost none, and reads little more than the quarter.
TEST(CheckpointTeam, no_rank_has_the_whole_to_save_or_to_load_it) {
  constexpr std::int64_t kRows = 4096, kColumns = 4096;
  constexpr std::int64_t kPart = kRows / 4 * kColumns;
  constexpr std::uint64_t kPartBytes = kPart * sizeof(float);
  const TestDirectory folder;
  const auto results = run_process_ranks(4, [&](ProcessGroup& group) {
    const Box box{{group.rank() * kRows / 4, 0}, {kRows / 4, kColumns}};
    std::vector<float> part(kPart);
    for (std::size_t i = 0; i < part.size(); ++i)
      part[i] = static_cast<float>(i % 1000) + static_cast<float>(group.rank());
    const std::vector<float> expected = part;
    auto* const bytes = reinterpret_cast<std::byte*>(part.data());
    CheckpointTeam team(borrowed(group), folder.path(), {});
    testing::peak_memory();
    const std::uint64_t before = testing::peak_memory();
    team.save(1, {{{"t", Dtype::kFloat32, {kRows, kColumns}, box}, {bytes, {kColumns, 1}}}}, {});
    EXPECT_FALSE(team.finish());
    EXPECT_LT(testing::peak_memory(), before + kPartBytes * 3 / 2);
    group.barrier();
    std::ranges::fill(part, 0.0F);
    const Manifest manifest =
        CheckpointDirectory(folder.path(), {.read_only = true}).read_manifest(1);
    testing::peak_memory();
    const std::uint64_t saved = testing::peak_memory();
    const std::uint64_t read = team.read(manifest, {{"t", box, bytes}});
    EXPECT_LE(read, kPartBytes + kPartBytes / 20);
    EXPECT_LT(testing::peak_memory(), saved + kPartBytes / 2);
    EXPECT_TRUE(part == expected);
    return std::string();
  });
  for (const auto& result : results) EXPECT_EQ(result.exit_code, 0) << result.report;
}
#endif

TEST(CheckpointTeam, the_manifest_names_a_tensor_with_infinities_or_nans_that_should_have_none) {
  struct Number {
    Dtype dtype;
    std::uint64_t bits;
    bool is_finite;
  };
  const std::vector<Number> numbers = {{Dtype::kFloat32, 0x7f80'0000, false},  // infinity
                                       {Dtype::kFloat32, 0xffc0'0000, false},  // NaN
                                       {Dtype::kFloat32, 0xff7f'ffff, true},   // the least number
                                       {Dtype::kFloat64, 0x7ff0'0000'0000'0001, false},
                                       {Dtype::kFloat64, 0x7fef'ffff'ffff'ffff, true},
                                       {Dtype::kFloat16, 0xfc00, false},
                                       {Dtype::kFloat16, 0x7bff, true},
                                       {Dtype::kBfloat16, 0x7fc0, false},
                                       {Dtype::kBfloat16, 0x7c00, true},
                                       {Dtype::kInt32, 0x7f80'0000, true}};
  constexpr std::int64_t kElements = 5000;
  const TestDirectory folder;
  std::int64_t step = 0;
  const auto not_finite = [&](const Number& number, std::int64_t position, bool must_be_finite) {
    ++step;
    run_ranks_ok(2, [&](ProcessGroup& group) {
      const std::size_t size = size_of(number.dtype);
      std::vector<std::byte> all(kElements * size);
      std::memcpy(all.data() + static_cast<std::size_t>(position) * size, &number.bits, size);
      const std::int64_t first = group.rank() * kElements / 2;
      std::vector<HeldMemory> held;
      for (const char* const name : {"a", "b"}) {
        held.push_back({{name, number.dtype, {kElements}, {{first}, {kElements / 2}}},
                        {all.data() + static_cast<std::size_t>(first) * size, {1}},
                        must_be_finite && name == std::string("b")});
      }
      CheckpointTeam team(borrowed(group), folder.path(), {.keep = 1});
      team.save(step, held, {.metadata = {{"word", "kept"}}});
      EXPECT_FALSE(team.finish());
    });
    auto words =
        CheckpointDirectory(folder.path(), {.read_only = true}).read_manifest(step).metadata;
    EXPECT_EQ(words["word"], "kept");
    return words[Manifest::kNotFinite];
  };
  for (const Number& number : numbers) {
    for (const std::int64_t position : {std::int64_t{0}, std::int64_t{1024}, kElements - 1}) {
      EXPECT_EQ(not_finite(number, position, true), number.is_finite ? "" : "b")
          << name_of(number.dtype) << " " << number.bits << " at " << position;
    }
    EXPECT_EQ(not_finite(number, 7, false), "") << "nobody asked";
  }
}

TEST(CheckpointTeam, ranks_that_leave_something_out_are_an_error_on_every_rank) {
  run_ranks_ok(2, [](ProcessGroup& group) {
    const TestDirectory folder;
    CheckpointTeam team(borrowed(group), folder.path(), {});
    Held held(group, 1);
    if (group.rank() == 1) held.boxes.clear();
    const auto error = error_of([&] { team.save(1, held.boxes, {}); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalid);
    EXPECT_THAT(error.what(), Says("manifest.box_missing"));
  });
}

}  // namespace
}  // namespace paceline
