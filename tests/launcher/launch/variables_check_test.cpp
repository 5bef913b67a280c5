#include <filesystem>
#include <regex>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "apps/run/ignored_options.h"
#include "tests/harness/says.h"
#include "tests/launcher/job_timeline/trace_reader.h"
#include "tests/launcher/launch/paceline_process.h"

namespace paceline::launcher {
namespace {

using harness::Says;
using testing::Not;

std::set<std::string> variables_in_sources() {
  std::set<std::string> names;
  const std::regex literal("\"(PACELINE_[A-Z0-9_]+)\"");
  for (const char* folder : {"/paceline", "/apps"}) {
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(std::string(SOURCE_FOLDER) + folder)) {
      const std::string extension = entry.path().extension();
      if (extension != ".cpp" && extension != ".h") continue;
      if (entry.path().filename() == "ignored_options.cpp") continue;
      const std::string text = read_text(entry.path());
      for (std::sregex_iterator found(text.begin(), text.end(), literal), end; found != end;
           ++found) {
        names.insert((*found)[1]);
      }
    }
  }
  return names;
}

TEST(VariablesCheck, knows_every_variable_that_the_sources_name) {
  const std::set<std::string> known(apps::own_variables().begin(), apps::own_variables().end());
  EXPECT_EQ(known, variables_in_sources());
}

TEST(VariablesCheck, an_unknown_variable_is_named_with_the_one_that_was_meant) {
  const Outcome outcome = run_paceline({"run", "true"}, {{"PACELINE_TIMEUOT", "3"},
                                                         {"PACELINE_LOG_LEVL", "foo"},
                                                         {"PACELINE_BAKEND", "gloo"},
                                                         {"PACELINE_ZZZ", "1"},
                                                         {"PACELINE_TIMEOUT", "60"},
                                                         {"PET_FOO", "1"}});
  EXPECT_EQ(outcome.exit_code, 0);
  for (const auto& [unknown, meant] : {std::pair("PACELINE_TIMEUOT", "PACELINE_TIMEOUT"),
                                       std::pair("PACELINE_LOG_LEVL", "PACELINE_LOG_LEVEL"),
                                       std::pair("PACELINE_BAKEND", "PACELINE_BACKEND")}) {
    EXPECT_THAT(outcome.err, Says("usage.own_variable_meant", unknown, meant));
  }
  EXPECT_THAT(outcome.err, Says("usage.own_variable_unknown", "PACELINE_ZZZ\n"));
  EXPECT_THAT(outcome.err, Says("usage.variable_without_option", "PET_FOO", "\n"));
  EXPECT_THAT(outcome.err, Not(Says("usage.own_variable_unknown", "PACELINE_TIMEOUT")));
}

}  // namespace
}  // namespace paceline::launcher
