#include "apps/misplaced_options.h"

#include <algorithm>
#include <array>
#include <iterator>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "paceline/engine/core/exit_code.h"
#include "paceline/launcher/output/line_formatter.h"

namespace paceline::apps {
namespace {

constexpr std::array kOfRanks = {"--nproc-per-node", "--nnodes", "--hosts", "--hostfile"};
constexpr int kCouldNotStart = 126;  // from here on: not started, or ended by a signal

bool is_of_ranks(const std::string& word) {
  return std::find(kOfRanks.begin(), kOfRanks.end(), option_name(word)) != kOfRanks.end();
}

std::string note(const std::vector<std::string>& words, const CommandLine& line,
                 const std::string& consequence) {
  const std::string program = launcher::neutralise_in_line(line.program.front());
  return fmt::format(
      "paceline: note: {} come{} after the program, so {} gets {}{}; options of paceline run come "
      "first: paceline run {} ... {}",
      fmt::join(words, ", "), words.size() == 1 ? "s" : "", program,
      words.size() == 1 ? "it" : "them", consequence, words.front(), program);
}

}  // namespace

std::vector<std::string> options_behind(const CLI::App& app, const CommandLine& line) {
  std::vector<std::string> words;
  for (std::size_t i = 1; i < line.program.size() && line.program[i] != "--"; ++i) {
    const std::string& word = line.program[i];
    if (!word.starts_with("--")) continue;
    const CLI::Option* const option = app.get_option_no_throw(option_name(word));
    if (option == nullptr || option->get_group().empty() || option == app.get_help_ptr()) continue;
    if (origin_of(*option, line) == "default") words.push_back(word.substr(0, word.find('=')));
  }
  return words;
}

std::string note_on_ranks(const std::vector<std::string>& behind, const CommandLine& line) {
  std::vector<std::string> words;
  std::copy_if(behind.begin(), behind.end(), std::back_inserter(words), is_of_ranks);
  return words.empty() ? "" : note(words, line, ", and one rank is started");
}

std::string note_on_failure(const std::vector<std::string>& behind, const CommandLine& line,
                            int exit_code) {
  const bool failed = exit_code != 0 && exit_code != kStoppedAsAgreed && exit_code < kCouldNotStart;
  return !failed || behind.empty() ? "" : note(behind, line, "");
}

}  // namespace paceline::apps
