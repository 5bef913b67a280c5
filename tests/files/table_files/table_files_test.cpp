// Tables in directories of checkpoints: what is saved is loaded, whatever fails meanwhile.

#include "paceline/files/table_files/table_files.h"

#include <csignal>

#include <sys/wait.h>
#include <unistd.h>

#include "paceline/engine/tables/host/cutting.h"
#include "paceline/files/table_files/table_checkpoints.h"

#include "tests/engine/tables/table_job.h"
#include "tests/files/checkpoint/real_file_system.h"
#include "tests/files/checkpoint/test_directory.h"

namespace paceline::tables {
namespace {

using namespace testing_job;
using paceline::testing::RealFileSystem;
using paceline::testing::TestDirectory;

TableCut cut_of(float value, Id first = 0) {
  const Memories memories({.width = 3, .optimizer = Adam{}, .capacity = 100, .seed = 2});
  const auto rows = open(memories.first(), "a");
  std::vector<Id> ids(20);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = first + static_cast<Id>(i) * 1'000'003;
  rows->push(ids, std::vector<float>(60, value));
  rows->tick();
  rows->set_lr(0.1);
  return rows->cut();
}

TEST(TableFiles, LoadWhatWasSaved) {
  const TestDirectory folder;
  CheckpointDirectory directory(folder / "d");
  const TableCut one = cut_of(1), two = cut_of(2);
  save_tables(directory, 5, {{"one", one}, {"two", two}}, {{"sampler", "epoch 3, batch 17"}});
  EXPECT_EQ(load_table(directory, 5, "one"), one);
  EXPECT_EQ(load_table(directory, 5, "two"), two);
  EXPECT_EQ(tables_in(directory, 5), (std::vector<std::string>{"one", "two"}));
  EXPECT_EQ(texts_in(directory, 5),
            (std::map<std::string, std::string>{{"sampler", "epoch 3, batch 17"}}));
  directory.verify(5);
}

TEST(TableCheckpoints, KeepTablesAndTextsOfTheNewestSteps) {
  const TestDirectory folder;
  const TableCut cut = cut_of(1);
  TableCheckpoints checkpoints(folder / "d", 2);
  for (std::int64_t step = 1; step <= 3; ++step)
    checkpoints.save(step, {{"item", cut}}, {{"sampler", std::to_string(step)}});
  const TableCheckpoints reader(folder / "d", 2, true);
  EXPECT_EQ(reader.steps(), (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(reader.load(3, "item"), cut);
  EXPECT_EQ(reader.tables(2), std::vector<std::string>{"item"});
  EXPECT_EQ(reader.texts(2).at("sampler"), "2");
  expect_error(ErrorCode::kInvalid, {"2, 3"}, [&] { (void)reader.texts(1); });
}

TEST(TableFiles, LoadAnEmptyTable) {
  const TestDirectory folder;
  CheckpointDirectory directory(folder / "d");
  const Memories memories(adding_rows(2));
  const TableCut empty = open(memories.first(), "a")->cut();
  save_tables(directory, 0, {{"t", empty}});
  EXPECT_EQ(load_table(directory, 0, "t"), empty);
}

TEST(TableFiles, SayWhichTablesThereAre) {
  const TestDirectory folder;
  CheckpointDirectory directory(folder / "d");
  save_tables(directory, 1, {{"item", cut_of(1)}, {"user", cut_of(2)}});
  expect_error(ErrorCode::kInvalid, {"no such table; the checkpoint has: item, user"},
               [&] { load_table(directory, 1, "users"); });
  expect_error(ErrorCode::kInvalid, {"must not be empty or have a slash"}, [&] {
    save_tables(directory, 2, {{"a/b", cut_of(1)}});
  });
  EXPECT_EQ(directory.list(), std::vector<std::int64_t>{1});
}

TEST(TableFiles, MergeTheTablesOfSeveralServers) {
  const TableCut whole = cut_of(3);
  std::vector<TableCut> parts;
  for (std::uint32_t server = 0; server < 3; ++server) {
    const Memories memories({.width = 3, .optimizer = Adam{}, .capacity = 100, .seed = 2});
    const auto rows = open(memories.first(), "a");
    rows->restore_some(whole, [&](Id id) { return slot_of(id) % 3 == server; });
    parts.push_back(rows->cut());
    parts.back().sessions.clear();
  }
  const TableCut merged = merge(parts);
  EXPECT_EQ(merged.ids, whole.ids);
  EXPECT_EQ(merged.rows, whole.rows);
  EXPECT_EQ(merged.lr, whole.lr);
  parts[1].width = 4;
  expect_error(ErrorCode::kInvalid, {"part 1 belongs to another table: width 4"},
               [&] { merge(parts); });
}

// A disk on which the call number `fatal` fails, or kills the process.
class FailingDisk : public RealFileSystem {
 public:
  int countdown = 0;
  bool kills = false;
  ssize_t write(int fd, std::span<const std::byte> bytes) override {
    if (fails()) return -1;
    return RealFileSystem::write(fd, bytes);
  }
  int fsync(int fd) override { return fails() ? -1 : RealFileSystem::fsync(fd); }
  int rename(const std::string& from, const std::string& to) override {
    return fails() ? -1 : RealFileSystem::rename(from, to);
  }

 private:
  bool fails() {
    if (--countdown != 0) return false;
    if (kills) raise(SIGKILL);
    errno = ENOSPC;
    return true;
  }
};

TEST(TableFiles, AFullDiskLeavesTheOlderTable) {
  const TestDirectory folder;
  const TableCut old = cut_of(1);
  {
    CheckpointDirectory directory(folder / "d");
    save_tables(directory, 1, {{"t", old}});
  }
  bool has_failed = true;
  for (int call = 1; has_failed; ++call) {
    FailingDisk disk;
    CheckpointDirectory directory(folder / "d", {}, disk);
    disk.countdown = call;
    try {
      save_tables(directory, 2, {{"t", cut_of(2)}});
      has_failed = false;
    } catch (const Error& error) {
      EXPECT_EQ(load_table(directory, 1, "t"), old) << "call " << call;
    }
    ASSERT_LT(call, 100);
  }
}

TEST(TableFiles, AKilledWriterLeavesATable) {
  const TestDirectory folder;
  const TableCut old = cut_of(1), next = cut_of(2);
  {
    CheckpointDirectory directory(folder / "d");
    save_tables(directory, 1, {{"t", old}});
  }
  for (int call = 1;; ++call) {
    const pid_t child = fork();
    if (child == 0) {
      FailingDisk disk;
      CheckpointDirectory directory(folder / "d", {}, disk);
      disk.kills = true;
      disk.countdown = call;
      save_tables(directory, 2, {{"t", next}});
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    const CheckpointDirectory directory(folder / "d", {.read_only = true});
    const auto steps = directory.list();
    ASSERT_FALSE(steps.empty());
    ASSERT_EQ(load_table(directory, steps.back(), "t"), steps.back() == 1 ? old : next);
    if (WIFEXITED(status)) break;
    ASSERT_LT(call, 100);
  }
}

}  // namespace
}  // namespace paceline::tables
