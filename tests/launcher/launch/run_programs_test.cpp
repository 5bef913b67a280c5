// Files that `paceline run` is given in place of a program, and what it says to run instead.

#include <string>
#include <string_view>
#include <vector>

#include <elf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tests/harness/fresh_directory.h"
#include "tests/harness/says.h"
#include "tests/launcher/launch/paceline_process.h"

namespace paceline::launcher {
namespace {

using harness::Says;
using harness::SaysMatcher;

// The start of a file that a linker or the kernel has made.
std::string binary(unsigned type) {
  Elf64_Ehdr header{};
  std::string_view(ELFMAG).copy(reinterpret_cast<char*>(header.e_ident), SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_type = static_cast<Elf64_Half>(type);
  return {reinterpret_cast<const char*>(&header), sizeof header};
}

struct NoProgram {
  std::string file, bytes;
  SaysMatcher message;
};

// A file that cannot be a program is refused whatever its permissions are: on some file systems
// every file may be executed.
TEST(RunPrograms, a_file_that_is_no_program_is_refused_with_what_to_run_instead) {
  const std::string source = "int main() {}\n";
  const std::vector<NoProgram> files = {
      {"train.cpp", source, Says("program.source")},
      {"train.cc", source, Says("program.source")},
      {"train.cu", source, Says("program.source")},
      {"train.h", source, Says("program.source")},
      {"CMakeLists.txt", "project(train)\n", Says("program.build_file")},
      {"Makefile", "all:\n", Says("program.build_file")},
      {"train.ipynb", "{}\n", Says("program.notebook")},
      {"train.o", binary(ET_REL), Says("program.object")},
      {"libtrain.a", "!<arch>\n", Says("program.static_library")},
      {"libtrain.so", binary(ET_DYN), Says("program.shared_library")},
      {"core", binary(ET_CORE), Says("program.core")},
  };
  for (const auto& [name, bytes, message] : files) {
    const FreshDirectory directory;
    const std::string file = directory.write(name, bytes);
    for (const unsigned permissions : {0644U, 0755U}) {
      ASSERT_EQ(chmod(file.c_str(), permissions), 0);
      const Outcome outcome = run_paceline({"run", "--nproc-per-node", "2", file});
      EXPECT_EQ(outcome.exit_code, 126) << file;
      EXPECT_THAT(outcome.err, message);
      EXPECT_THAT(outcome.err, testing::Not(testing::HasSubstr("chmod"))) << file;
    }
  }
}

TEST(RunPrograms, a_file_without_the_permission_is_refused_by_its_kind) {
  const FreshDirectory directory;
  const auto refused = [](const std::string& file) {
    const Outcome outcome = run_paceline({"run", file});
    EXPECT_EQ(outcome.exit_code, 126) << file;
    return outcome.err;
  };
  const std::string script = directory.write("train.sh", "echo one\n");
  EXPECT_THAT(refused(script), Says("program.interpreter", script, "bash " + script));
  const std::string data = directory.write("train.json", "{}\n");
  EXPECT_THAT(refused(data), Says("program.neither", data));
  const std::string lacking = directory.write("train", "#!/bin/sh\n");
  EXPECT_THAT(refused(lacking), Says("program.not_allowed", lacking, lacking));
  for (const std::string& begin : {std::string(), binary(ET_EXEC)}) {
    const std::string program = directory.write("linked", begin);
    EXPECT_THAT(refused(program), Says("program.being_linked", program));
  }
  EXPECT_THAT(refused(directory.path()), Says("program.directory", directory.path()));
  EXPECT_THAT(refused("/dev/null"), Says("program.no_file", "/dev/null"));
}

TEST(RunPrograms, a_source_file_named_without_a_folder_is_refused_as_one) {
  const FreshDirectory directory;
  directory.write("train.cpp", "int main() {}\n");
  const Outcome outcome = PacelineProcess({"-c", "cd " + directory.path() + " && exec " +
                                                     PACELINE_COMMAND + " run train.cpp"},
                                          {}, "/bin/sh")
                              .wait();
  EXPECT_EQ(outcome.exit_code, 127);
  EXPECT_THAT(outcome.err, Says("program.not_in_path", "train.cpp"));
  EXPECT_THAT(outcome.err, Says("program.source", "./train.cpp"));
}

}  // namespace
}  // namespace paceline::launcher
