#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include "paceline/engine/core/error.h"
#include "paceline/files/images/image_files.h"

#include "tests/harness/expect_error.h"
#include "tests/harness/fresh_directory.h"

namespace paceline::images {
namespace {

using ::testing::ElementsAre;

void make(const FreshDirectory& folder, const std::vector<std::string>& files) {
  for (const std::string& file : files) {
    std::filesystem::create_directories(std::filesystem::path(folder.file(file)).parent_path());
    folder.write(file, "x");
  }
}

std::vector<std::string> listed(const FreshDirectory& folder) {
  const ImageList list(folder.path());
  std::vector<std::string> lines;
  for (std::int64_t i = 0; i < list.size(); ++i) {
    lines.push_back(
        fmt::format("{} {}", list.path(i).substr(folder.path().size() + 1), list.label(i)));
  }
  return lines;
}

TEST(ImageList, classes_folders_and_files_are_sorted_and_other_types_left_out) {
  const FreshDirectory folder;
  make(folder, {"b/2.png", "b/10.JPG", "b/1.jpeg", "b/note.txt", "b/old.webp", "B/x.png",
                "a/sub/1.png", "a/z.png", "a/sub-1/0.png", "outside.png"});
  EXPECT_THAT(listed(folder),
              ElementsAre("B/x.png 0", "a/z.png 1", "a/sub/1.png 1", "a/sub-1/0.png 1",
                          "b/1.jpeg 2", "b/10.JPG 2", "b/2.png 2"));
  const ImageList list(folder.path());
  EXPECT_THAT(list.classes(), ElementsAre("B", "a", "b"));
  EXPECT_EQ(list.num_of_other_types(), 1);
}

TEST(ImageList, one_class_is_enough_and_links_are_followed) {
  const FreshDirectory folder, elsewhere;
  make(elsewhere, {"deep/1.png"});
  make(folder, {"only/0.png"});
  ASSERT_EQ(::symlink(elsewhere.path().c_str(), folder.file("only/link").c_str()), 0);
  EXPECT_THAT(listed(folder), ElementsAre("only/0.png 0", "only/link/deep/1.png 0"));
}

TEST(ImageList, names_that_are_not_utf8_are_taken_as_they_are) {
  const FreshDirectory folder;
  make(folder, {"caf\xe9/\xff.png"});
  const ImageList list(folder.path());
  EXPECT_EQ(list.path(0), folder.file("caf\xe9/\xff.png"));
  make(folder, {"caf\xe8/note.txt"});
  expect_error(ErrorCode::kInvalid, {"1 of 2 classes: caf\\xe8"},
               [&] { ImageList{folder.path()}; });
}

TEST(ImageList, a_folder_without_images_is_an_error_that_says_what_is_missing) {
  const FreshDirectory folder;
  expect_error(ErrorCode::kInvalid, {folder.file("gone"), "no such folder"},
               [&] { ImageList{folder.file("gone")}; });
  expect_error(ErrorCode::kInvalid, {folder.path(), "one for each class"},
               [&] { ImageList{folder.path()}; });
  make(folder, {"a/1.png", "b/note.txt"});
  ASSERT_EQ(::mkdir(folder.file("c").c_str(), 0700), 0);
  expect_error(ErrorCode::kInvalid, {folder.path(), "2 of 3 classes: b, c"},
               [&] { ImageList{folder.path()}; });
  expect_error(ErrorCode::kInvalid, {"no such folder"}, [&] { ImageList{folder.file("a/1.png")}; });
}

TEST(ImageList, links_in_a_circle_are_an_error_that_names_the_link) {
  const FreshDirectory folder;
  make(folder, {"a/sub/1.png"});
  ASSERT_EQ(::symlink(folder.file("a").c_str(), folder.file("a/sub/up").c_str()), 0);
  expect_error(ErrorCode::kInvalid, {folder.file("a/sub/up"), "links back to", folder.file("a")},
               [&] { ImageList{folder.path()}; });
}

TEST(ImageList, a_folder_that_cannot_be_read_is_an_error_with_its_name) {
  const FreshDirectory folder;
  make(folder, {"a/1.png", "a/closed/2.png"});
  ASSERT_EQ(::chmod(folder.path().c_str(), 0755), 0);
  ASSERT_EQ(::chmod(folder.file("a/closed").c_str(), 0), 0);
  const bool is_root = ::geteuid() == 0;
  ASSERT_EQ(is_root ? ::seteuid(65534) : 0, 0);
  expect_error(ErrorCode::kSystem, {folder.file("a/closed"), "Permission denied"},
               [&] { ImageList{folder.path()}; });
  ASSERT_EQ(is_root ? ::seteuid(0) : 0, 0);
  ASSERT_EQ(::chmod(folder.file("a/closed").c_str(), 0700), 0);
}

}  // namespace
}  // namespace paceline::images
