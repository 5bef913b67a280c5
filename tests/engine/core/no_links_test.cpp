#include <cerrno>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "paceline/engine/core/system/safe_files.h"

#include "tests/harness/fresh_directory.h"

namespace paceline {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// Makes a file-system entry called `name`, in a folder that also has the folder "target" with a
// file.
struct Planted {
  const char* what;
  std::function<void(const std::string& name, const std::string& target)> make;
  int error_without_links;  // errno of open_without_links(); 0: it succeeds
  int error_to_read;
  int error_to_write;
};

void make_socket(const std::string& name) {
  const Fd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  name.copy(address.sun_path, sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
}

const std::vector<Planted>& table() {
  static const std::vector<Planted> rows = {
      {"a file", [](auto& name, auto&) { std::ofstream(name) << "mine"; }, 0, 0, 0},
      {"nothing", [](auto&, auto&) {}, ENOENT, ENOENT, ENOENT},
      {"a link to a file",
       [](auto& name, auto& target) { fs::create_symlink(target + "/file", name); }, ELOOP, 0,
       ELOOP},
      {"a link to a folder",
       [](auto& name, auto& target) { fs::create_directory_symlink(target, name); }, ELOOP, ENOTSUP,
       ELOOP},
      {"a dangling link",
       [](auto& name, auto& target) { fs::create_symlink(target + "/none", name); }, ELOOP, ENOENT,
       ELOOP},
      {"a loop", [](auto& name, auto&) { fs::create_symlink(name, name); }, ELOOP, ELOOP, ELOOP},
      {"a second name of a file",
       [](auto& name, auto& target) { fs::create_hard_link(target + "/file", name); }, 0, 0,
       EMLINK},
      {"a folder", [](auto& name, auto&) { fs::create_directory(name); }, 0, ENOTSUP, EISDIR},
      {"a FIFO", [](auto& name, auto&) { ASSERT_EQ(::mkfifo(name.c_str(), 0600), 0); }, 0, ENOTSUP,
       ENOTSUP},
      {"a socket", [](auto& name, auto&) { make_socket(name); }, ENXIO, ENXIO, ENOTSUP},
      {"a link to a device", [](auto& name, auto&) { fs::create_symlink("/dev/zero", name); },
       ELOOP, ENOTSUP, ELOOP},
  };
  return rows;
}

// A folder with one entry of the table, and with the targets of the links.
struct Scene {
  explicit Scene(const Planted& row) {
    fs::create_directory(target);
    folder.write("target/file", "precious");
    row.make(name, target);
  }
  void expect_untouched() const {
    std::ifstream file(target + "/file");
    std::string text;
    std::getline(file, text);
    EXPECT_EQ(text, "precious");
    EXPECT_FALSE(fs::exists(target + "/none"));
  }

  FreshDirectory folder;
  const std::string target = folder.file("target"), name = folder.file("name");
};

int error_of(const Fd& file) { return file ? 0 : errno; }

TEST(NoLinks, of_every_kind_are_opened_or_refused_at_once) {
  for (const Planted& row : table()) {
    SCOPED_TRACE(row.what);
    const Scene scene(row);
    EXPECT_EQ(error_of(open_without_links(scene.name, O_RDONLY | O_NONBLOCK)),
              row.error_without_links);
    EXPECT_EQ(error_of(open_to_read(scene.name)), row.error_to_read);
    EXPECT_EQ(error_of(open_to_write(scene.name, O_WRONLY | O_TRUNC)), row.error_to_write);
    scene.expect_untouched();
  }
}

TEST(NoLinks, are_refused_wherever_they_stand_on_a_path) {
  const FreshDirectory folder;
  fs::create_directories(folder.file("a/b/c"));
  folder.write("a/b/c/file", "x");
  fs::create_directory_symlink(folder.file("a"), folder.file("link"));
  fs::create_directory_symlink("b", folder.file("a/other"));
  EXPECT_TRUE(open_without_links(folder.file("a/b/c/file"), O_RDONLY, 0));
  EXPECT_TRUE(open_without_links(folder.file("a//b/./c/../c/file"), O_RDONLY, 0));
  EXPECT_TRUE(open_without_links(folder.file("a/b/"), O_RDONLY | O_DIRECTORY, 0));
  for (const char* path : {"link/b/c/file", "a/other/c/file", "a/other", "link", "link/b/.."}) {
    for (const int flags : {O_RDONLY, O_PATH, O_PATH | O_DIRECTORY}) {
      SCOPED_TRACE(testing::Message() << path << " with flags " << flags);
      EXPECT_FALSE(open_without_links(folder.file(path), flags, 0));
      EXPECT_EQ(errno, ELOOP);
    }
  }
  EXPECT_TRUE(open_without_links(folder.file("a/b/c/file"), O_PATH, 0));
  EXPECT_FALSE(open_without_links("", O_RDONLY, 0));
  EXPECT_EQ(errno, ENOENT);
  EXPECT_TRUE(open_without_links("/", O_RDONLY, 0));
  EXPECT_TRUE(open_without_links(".", O_RDONLY, 0));
  EXPECT_EQ(without_links(folder.file("a/b")), folder.file("a/b"));
  EXPECT_EQ(without_links(folder.file("link/b/c")), fs::canonical(folder.file("a/b/c")).string());
  EXPECT_EQ(without_links(folder.file("link/b/new/deep")),
            (fs::canonical(folder.file("a/b")) / "new/deep").string());
  EXPECT_EQ(in_folder_without_links(folder.file("link/b/file")),
            (fs::canonical(folder.file("a/b")) / "file").string());
  EXPECT_EQ(in_folder_without_links("file"), "file");
}

TEST(NoLinks, a_file_of_another_user_is_written_only_in_that_users_folder) {
  if (::geteuid() != 0) GTEST_SKIP() << "files of two users need root";
  const FreshDirectory folder;
  fs::permissions(folder.path(), fs::perms::all);
  const std::string name = folder.write("name", "theirs");
  fs::permissions(name, fs::perms::all);
  constexpr uid_t kThem = 12345, kUs = 54321;
  ASSERT_EQ(::chown(name.c_str(), kThem, ::getegid()), 0);
  ASSERT_EQ(::seteuid(kUs), 0);
  const int refusal = error_of(open_to_write(name, O_WRONLY));
  ASSERT_EQ(::seteuid(0), 0);
  EXPECT_EQ(refusal, EPERM);
  ASSERT_EQ(::chown(folder.path().c_str(), kThem, ::getegid()), 0);
  ASSERT_EQ(::seteuid(kUs), 0);
  const int accepted = error_of(open_to_write(name, O_WRONLY));
  ASSERT_EQ(::seteuid(0), 0);
  EXPECT_EQ(accepted, 0);
}

TEST(FolderProblem, names_the_first_folder_that_cannot_be_entered) {
  const FreshDirectory folder;
  const std::string file = folder.write("file", "");
  fs::create_symlink("nowhere", folder.file("link"));
  EXPECT_EQ(folder_problem(folder.file("new")), "");
  EXPECT_EQ(folder_problem("new"), "");
  EXPECT_EQ(folder_problem(folder.file("a/b/new")),
            "the folder " + folder.file("a") + " does not exist");
  EXPECT_EQ(folder_problem(file + "/new"), file + " is a file, not a folder");
  EXPECT_EQ(folder_problem(folder.file("link/new")),
            "the link " + folder.file("link") + " points to nothing");
  EXPECT_EQ(describe_refusal(folder.file("new"), ENOENT), "No such file or directory");
  EXPECT_THAT(describe_refusal(file + "/new", ENOTDIR), HasSubstr("is a file"));
}

TEST(FileDraft, replaces_whatever_stands_in_its_place_and_nothing_behind_it) {
  for (const Planted& row : table()) {
    if (std::string(row.what) == "a folder") continue;
    SCOPED_TRACE(row.what);
    const Scene scene(row);
    replace_file(scene.name, "new");
    EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(scene.name)));
    EXPECT_EQ(fs::file_size(scene.name), 3u);
    scene.expect_untouched();
    EXPECT_EQ(std::distance(fs::directory_iterator(scene.folder.path()), {}), 2);
  }
}

TEST(FileDraft, that_is_not_published_leaves_nothing) {
  const FreshDirectory folder;
  { const FileDraft draft(folder.file("name")); }
  EXPECT_TRUE(fs::is_empty(folder.path()));
  EXPECT_THROW(replace_file(folder.file("none/name"), "x"), Error);
  fs::create_directory(folder.file("name"));
  EXPECT_THROW(replace_file(folder.file("name"), "x"), Error);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1);
}

}  // namespace
}  // namespace paceline
