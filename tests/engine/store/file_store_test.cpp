#include "paceline/engine/store/file_store.h"

#include <filesystem>
#include <fstream>
#include <memory>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/harness/end_of.h"
#include "tests/harness/expect_error.h"
#include "tests/harness/fresh_directory.h"
#include "tests/harness/planted.h"

namespace paceline {
namespace {

using namespace std::chrono_literals;

// Starts a child that opens the store, sets a key and dies without cleaning up.
pid_t run_and_die(const std::string& path) {
  const pid_t child = ::fork();
  if (child == 0) {
    FileStore store(path);
    store.set("key", "value");
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return child;
}

TEST(FileStore, is_a_file_of_its_own) {
  harness::with_each_planted("store", [](const std::string& folder) {
    EXPECT_THROW(FileStore(folder + "/store", std::chrono::milliseconds(500)), Error);
  });
}

TEST(FileStore, is_private_and_removed_when_the_last_user_leaves) {
  const FreshDirectory directory;
  const auto path = directory.file("store");
  auto first = std::make_unique<FileStore>(path);
  auto second = std::make_unique<FileStore>(path);
  struct stat status {};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600U);
  first.reset();
  EXPECT_TRUE(std::filesystem::exists(path));
  second.reset();
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(FileStore, refuses_a_file_of_an_earlier_run_and_names_it) {
  const FreshDirectory directory;
  const auto path = directory.file("store");
  const pid_t child = run_and_die(path);
  expect_error(ErrorCode::kInvalid, {path, "process " + std::to_string(child), "rm " + path, "20"},
               [&] { FileStore store(path); });
  EXPECT_TRUE(std::filesystem::exists(path));
}

TEST(FileStore, a_killed_user_does_not_disturb_the_others) {
  const FreshDirectory directory;
  const auto path = directory.file("store");
  {
    FileStore store(path);
    run_and_die(path);
    EXPECT_EQ(store.get("key", 0ms), "value");
    EXPECT_EQ(FileStore(path).get("key", 0ms), "value");
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(FileStore, a_forked_child_that_destroys_its_copy_leaves_the_file_to_the_parent) {
  const FreshDirectory directory;
  const auto path = directory.file("store");
  auto store = std::make_unique<FileStore>(path);
  const pid_t child = ::fork();
  if (child == 0) {
    store.reset();
    ::_exit(0);
  }
  EXPECT_EQ(harness::end_of(child), "exit code 0");
  EXPECT_TRUE(std::filesystem::exists(path));
  store->set("key", "value");
  EXPECT_EQ(FileStore(path).get("key", 0ms), "value");  // finds that the file is in use
  store.reset();
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(FileStore, accepts_an_empty_file_and_refuses_a_foreign_one) {
  const FreshDirectory directory;
  const auto path = directory.file("store");
  { const std::ofstream empty(path); }
  { FileStore(path).set("a", "1"); }
  std::ofstream(path) << std::string(500, 'x');
  expect_error(ErrorCode::kInvalid, {path, "is not a store"}, [&] { FileStore store(path); });
  std::ofstream(path) << "short";
  expect_error(ErrorCode::kInvalid, {path, "is not a store"}, [&] { FileStore store(path); });
}

TEST(FileStore, follows_no_symbolic_link_and_needs_a_folder) {
  const FreshDirectory directory;
  std::filesystem::create_symlink(directory.file("target"), directory.file("link"));
  expect_error(ErrorCode::kSystem, {"link"}, [&] { FileStore store(directory.file("link")); });
  expect_error(ErrorCode::kSystem, {"absent/store"},
               [&] { FileStore store(directory.file("absent/store")); });
}

TEST(FileStore, a_half_written_record_of_a_killed_writer_does_not_count) {
  const FreshDirectory directory;
  const auto path = directory.file("store");
  FileStore store(path);
  store.set("a", "1");
  { std::ofstream(path, std::ios::app | std::ios::binary) << "half a rec"; }
  FileStore other(path);
  EXPECT_EQ(other.get("a", 0ms), "1");
  other.set("b", "2");
  EXPECT_EQ(store.get("b", 0ms), "2");
}

TEST(FileStore, a_damaged_file_is_corrupt_with_its_offset) {
  const FreshDirectory directory;
  const auto path = directory.file("store");
  FileStore store(path);
  store.set("a", "1");
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(152 + 1);
    file.write("\xff\xff\xff\xff", 4);
  }
  expect_error(ErrorCode::kCorrupt, {path, "byte 152"}, [&] { FileStore(path).get("a", 0ms); });
}

TEST(FileStore, a_removed_file_is_a_lost_store) {
  const FreshDirectory directory;
  const auto path = directory.file("store");
  FileStore store(path);
  std::filesystem::remove(path);
  expect_error(ErrorCode::kPeerLost, {path, "removed"}, [&] { store.set("a", "1"); });
}

TEST(FileStore, a_lock_that_is_never_given_back_ends_in_a_timeout) {
  const FreshDirectory directory;
  const auto path = directory.file("store");
  FileStore store(path);
  store.set_timeout(50ms);
  const Fd holder(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  struct flock region {};
  region.l_type = F_WRLCK;
  region.l_len = 1;
  ASSERT_EQ(::fcntl(holder.get(), F_OFD_SETLK, &region), 0);
  expect_error(ErrorCode::kTimeout, {path, "locked"}, [&] { store.set("a", "1"); });
}

}  // namespace
}  // namespace paceline
