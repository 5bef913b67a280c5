#include <fstream>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "paceline/engine/core/system/fd.h"
#include "paceline/engine/rendezvous/launch_environment.h"

#include "tests/engine/rendezvous/variables_of.h"
#include "tests/harness/expect_error.h"
#include "tests/harness/fresh_directory.h"

namespace paceline {
namespace {

TEST(JobSecret, comes_from_an_inherited_descriptor_any_number_of_times) {
  const auto secret = Secret::generate();
  const Fd memory(::memfd_create("secret", 0));
  const auto text = secret.to_hex();
  ASSERT_EQ(::write(memory.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  const auto variables = variables_of({{"PACELINE_SECRET_FD", std::to_string(memory.get())}});
  EXPECT_EQ(find_job_secret(variables)->to_hex(), text);
  EXPECT_EQ(find_job_secret(variables)->to_hex(), text);
  EXPECT_NE(::fcntl(memory.get(), F_GETFD) & FD_CLOEXEC, 0);
}

TEST(JobSecret, a_descriptor_that_is_not_there_is_named) {
  expect_error(ErrorCode::kInvalid,
               {"PACELINE_SECRET_FD=1000000 is closed", "close_fds=False", "PACELINE_SECRET_FILE"},
               [] {
                 find_job_secret(variables_of({{"PACELINE_SECRET_FD", "1000000"}}));
               });
  expect_error(ErrorCode::kInvalid, {"PACELINE_SECRET_FD='x'"}, [] {
    find_job_secret(variables_of({{"PACELINE_SECRET_FD", "x"}}));
  });
}

TEST(JobSecret, a_file_stands_in_for_a_descriptor_that_a_wrapper_closed) {
  const FreshDirectory directory;
  const auto path = directory.file("secret");
  std::ofstream(path) << Secret::generate().to_hex() << "\n";
  ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
  EXPECT_TRUE(find_job_secret(
      variables_of({{"PACELINE_SECRET_FD", "1000000"}, {"PACELINE_SECRET_FILE", path}})));
}

TEST(JobSecret, a_file_must_be_private_and_long_enough) {
  const FreshDirectory directory;
  const auto path = directory.file("secret");
  std::ofstream(path) << "sixteen characters and more\n";
  const auto variables = variables_of({{"PACELINE_SECRET_FILE", path}});
  ASSERT_EQ(::chmod(path.c_str(), 0644), 0);
  expect_error(ErrorCode::kInvalid, {path, "chmod 600"}, [&] { find_job_secret(variables); });
  ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
  EXPECT_TRUE(find_job_secret(variables).has_value());
  ASSERT_EQ(::chmod(path.c_str(), 0400), 0);
  EXPECT_TRUE(find_job_secret(variables).has_value());
  ASSERT_EQ(::truncate(path.c_str(), 5), 0);
  expect_error(ErrorCode::kInvalid, {"openssl rand -hex 32"}, [&] { find_job_secret(variables); });
  expect_error(ErrorCode::kInvalid, {directory.file("absent")}, [&] {
    find_job_secret(variables_of({{"PACELINE_SECRET_FILE", directory.file("absent")}}));
  });
}

TEST(JobSecret, no_variables_mean_no_secret) {
  EXPECT_FALSE(find_job_secret(variables_of({})).has_value());
}

}  // namespace
}  // namespace paceline
