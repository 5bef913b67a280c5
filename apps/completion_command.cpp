// `paceline completion SHELL`: prints a script that completes commands and options in bash, zsh or
// fish. The script is made from each command's --help, so it always contains the current options.

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/engine/core/option_text.h"

#include "apps/cli/commands.h"
#include "apps/cli/option_value.h"
#include "apps/cli/own_program.h"

namespace paceline::apps {
namespace {

struct OptionHelp {
  std::string name;  // "--log-dir" or "-t"
  std::string text;  // the first line of its help text
  bool takes_value = false;
};

// The values of options that accept only a few words.
struct OptionValues {
  std::string_view name, values;
};
constexpr std::array<OptionValues, 13> kValues = {{
    {"--nproc-per-node", "auto cores"},
    {"--backend", "paceline gloo c10d mpi oneccl nccl"},
    {"--bind", "core cache numa socket none"},
    {"--numa-binding", "node socket exclusive core-complex"},
    {"--rdzv-backend", "paceline c10d static"},
    {"--tee", "0 1 2 3"},
    {"-t", "0 1 2 3"},
    {"--redirects", "0 1 2 3"},
    {"-r", "0 1 2 3"},
    {"--fork-server", "on off"},
    {"--hang-action", "report kill"},
    {"--chaos", "kill: stop: slow:"},
    {"--rdzv-conf",
     "join_timeout= last_call_timeout= keep_alive_interval= keep_alive_max_attempt= is_host="},
}};

// Commands whose first argument names a running job of the user.
constexpr std::array<std::string_view, 4> kOfJobs = {"top", "logs", "stop", "stacks"};

bool is_of_jobs(const std::string& command) {
  return std::find(kOfJobs.begin(), kOfJobs.end(), command) != kOfJobs.end();
}

std::string_view values_of(const std::string& option) {
  const auto* const found = std::find_if(kValues.begin(), kValues.end(),
                                         [&](const auto& one) { return one.name == option; });
  return found == kValues.end() ? std::string_view() : found->values;
}

struct CommandHelp {
  std::string name, text;
  std::vector<OptionHelp> options;
};

std::vector<std::string> lines_of(const std::string& arguments) {
  const std::string own = own_program();
  const std::string command = shell_quoted(own) + " " + arguments + " --help";
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  if (!pipe) throw system_error("asking " + own + " for its help");
  std::string text;
  std::array<char, 4096> buffer;
  while (const std::size_t length = std::fread(buffer.data(), 1, buffer.size(), pipe.get())) {
    text.append(buffer.data(), length);
  }
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

// Reads the options in a line of the help, such as "  -t,--tee 0-3  (Env:PET_TEE)": their names,
// and whether a value follows. The text about the options is on this line or on the next one.
std::vector<OptionHelp> options_in(const std::string& line, const std::string& next) {
  std::vector<OptionHelp> options;
  if (!line.starts_with("  -")) return options;
  const auto end = line.find_first_of(" \t", 2);
  const bool value = end != std::string::npos && end + 1 < line.size() && line[end + 1] != ' ' &&
                     line[end + 1] != '(';
  const auto variable = line.find("(Env:");
  const auto gap = variable == std::string::npos ? line.find("  ", 2) : line.find(')', variable);
  auto text = gap == std::string::npos ? "" : line.substr(gap + 1);
  if (text.find_first_not_of(' ') == std::string::npos) text = next;
  const auto begin = text.find_first_not_of(' ');
  text = begin == std::string::npos ? "" : text.substr(begin);
  for (const std::string& name : items_of(line.substr(2, end - 2)))
    options.push_back({name, text, value});
  return options;
}

bool knows(const CommandHelp& command, const std::string& name) {
  return std::any_of(command.options.begin(), command.options.end(),
                     [&](const OptionHelp& option) { return option.name == name; });
}

std::vector<CommandHelp> all_commands() {
  std::vector<CommandHelp> commands;
  bool in_commands = false;
  for (const std::string& line : lines_of("")) {
    if (line.empty()) in_commands = false;
    if (in_commands) {
      const auto end = line.find(' ', 2);
      const auto text = line.find_first_not_of(' ', end);
      commands.push_back({line.substr(2, end - 2), line.substr(text), {}});
    }
    in_commands = in_commands || line == "Commands:";
  }
  for (CommandHelp& command : commands) {
    const auto lines = lines_of(command.name);
    for (std::size_t i = 0; i < lines.size(); ++i) {
      for (OptionHelp& option : options_in(lines[i], i + 1 < lines.size() ? lines[i + 1] : "")) {
        if (!knows(command, option.name)) command.options.push_back(std::move(option));
      }
    }
  }
  return commands;
}

std::string names_of(const CommandHelp& command, bool only_with_value) {
  std::string names;
  for (const OptionHelp& option : command.options) {
    if (!only_with_value || option.takes_value) names += (names.empty() ? "" : " ") + option.name;
  }
  return names;
}

std::string bash_script(const std::vector<CommandHelp>& commands) {
  std::string names, options, values;
  for (const auto& [option, words] : kValues) {
    values += fmt::format("    {}) word='{}' ;;\n", option, words);
  }
  for (const CommandHelp& command : commands) {
    names += (names.empty() ? "" : " ") + command.name;
    options += fmt::format("    {}) options='{}'; values=' {} ' ;;\n", command.name,
                           names_of(command, false), names_of(command, true));
  }
  return fmt::format(
      R"bash(# bash completion of paceline; put it into ~/.local/share/bash-completion/completions/paceline
_paceline() {{
  local line=$COMP_LINE current=${{COMP_WORDS[COMP_CWORD]}} option= options= values= job= i n=-1
  local words=() word= first=2
  COMPREPLY=()
  # Bash treats ":" and "=" as separate words; text without blanks in the line is one word here.
  for ((i = 0; i <= COMP_CWORD; ++i)); do
    word=${{COMP_WORDS[i]}}
    [[ $i -gt 0 && $line != [[:space:]]* ]] || words[++n]=
    words[n]+=$word
    line=${{line#"${{line%%[![:space:]]*}}"}}
    line=${{line#"$word"}}
  done
  [[ $current == [:=]* ]] && current=
  if [ "$n" -eq 1 ]; then
    COMPREPLY=($(compgen -W '{0} --help --version' -- "$current"))
    return
  fi
  case ${{words[1]}} in
{1}  esac
  word=
  case ${{words[1]}} in
    submit) word='slurm kubernetes' first=3 ;;
    completion) word='bash zsh fish' first=3 ;;
  esac
  if [ "$n" -lt "$first" ]; then
    COMPREPLY=($(compgen -W "$word" -- "$current"))
    return
  fi
  # All words after the program belong to the program; complete them as files.
  for ((i = first; i < n; ++i)); do
    option=${{words[i]//_/-}}
    case ${{words[i]}} in
      --) compopt -o default; return ;;
      --*=*) ;;
      -*) case $values in *" $option "*) [ $((i + 1)) -lt "$n" ] && ((++i)) ;; esac ;;
      *) case ${{words[1]}} in
        {3}) job=${{words[i]}} ;;
        *) compopt -o default; return ;;
      esac ;;
    esac
  done
  # The value of an option, after a blank or "=".
  option=${{words[n - 1]}}
  [[ ${{words[n]}} == --*=* ]] && option=${{words[n]%%=*}}
  option=${{option//_/-}}
  word=
  case $option in
{2}  esac
  if [[ -n $word ]]; then
    COMPREPLY=($(compgen -W "$word" -- "$current"))
    return
  elif [[ $current == -* ]]; then
    COMPREPLY=($(compgen -W "$options" -- "${{current//_/-}}"))
    return
  fi
  compopt -o default
  case ${{words[1]}} in
    {3}) [[ -n $job || $values == *" $option "* ]] && return ;;
    *) return ;;
  esac
  while IFS= read -r word; do
    [[ $word == "$current"* ]] && COMPREPLY+=("$(printf %q "$word")")
  done < <("${{words[0]}}" ps --ids 2>/dev/null)
}}
complete -F _paceline paceline
)bash",
      names, options, values, fmt::join(kOfJobs, "|"));
}

// The text that zsh and fish show beside an option. Characters that have a meaning inside the
// quotes of the scripts are replaced by blanks.
std::string plain(const std::string& text) {
  std::string kept;
  for (const char c : text)
    kept += std::string_view("'[]:\\").find(c) == std::string_view::npos ? c : ' ';
  return kept;
}

std::string zsh_value(const OptionHelp& option) {
  if (!option.takes_value) return "";
  const std::string_view values = values_of(option.name);
  return values.empty() ? ":value:_files" : fmt::format(":value:({})", values);
}

std::string zsh_script(const std::vector<CommandHelp>& commands) {
  std::string names, cases;
  for (const CommandHelp& command : commands) {
    names += fmt::format("    '{}:{}'\n", command.name, plain(command.text));
    cases += fmt::format("    {}) _arguments -S \\\n", command.name);
    for (const OptionHelp& option : command.options) {
      cases +=
          fmt::format("      '{}[{}]{}' \\\n", option.name, plain(option.text), zsh_value(option));
    }
    cases += is_of_jobs(command.name)
                 ? "      ':job:{compadd -- ${(f)\"$(paceline ps --ids 2>/dev/null)\"}}' ;;\n"
                 : "      '*::program:_normal' ;;\n";
  }
  return fmt::format(R"(#compdef paceline
# zsh completion of paceline; put it as _paceline into a folder of $fpath
_paceline() {{
  local -a commands
  commands=(
{0}  )
  if (( CURRENT == 2 )); then
    _describe command commands
    return
  fi
  shift words
  (( CURRENT-- ))
  case $words[1] in
{1}  esac
}}
compdef _paceline paceline
)",
                     names, cases);
}

// A fish function that succeeds while the word that is being typed comes before the program.
constexpr const char* kFishCondition = R"(function __paceline_options_of
  set -l words (commandline -opc)
  test (count $words) -ge 2; and test $words[2] = $argv[1]; or return 1
  set -l is_value 0
  set -l first 3
  contains -- $argv[1] submit completion; and set first 4
  for word in $words[$first..-1]
    if test $is_value = 1
      set is_value 0
    else if string match -q -- '--*=*' $word
    else if test $word = --
      return 1
    else if string match -q -- '-*' $word
      contains -- $word $argv[2..-1]; and set is_value 1
    else
      return 1
    end
  end
  return 0
end
)";

std::string fish_option(const OptionHelp& option, const std::string& condition) {
  const bool is_long = option.name.starts_with("--");
  const std::string_view values = values_of(option.name);
  const std::string value = !option.takes_value ? ""
                            : values.empty()    ? " -r"
                                                : fmt::format(" -x -a '{}'", values);
  return fmt::format("complete -c paceline -n '{}' {} {}{} -d '{}'\n", condition,
                     is_long ? "-l" : "-s", option.name.substr(is_long ? 2 : 1), value,
                     plain(option.text));
}

std::string fish_script(const std::vector<CommandHelp>& commands) {
  std::string text =
      "# fish completion of paceline; put it into ~/.config/fish/completions/paceline.fish\n";
  text += kFishCondition;
  for (const CommandHelp& command : commands) {
    text += fmt::format("complete -c paceline -n __fish_use_subcommand -f -a {} -d '{}'\n",
                        command.name, plain(command.text));
    const std::string condition =
        fmt::format("__paceline_options_of {} {}", command.name, names_of(command, true));
    for (const OptionHelp& option : command.options) text += fish_option(option, condition);
    if (is_of_jobs(command.name)) {
      text += fmt::format("complete -c paceline -n '{}' -f -a '(paceline ps --ids 2>/dev/null)'\n",
                          condition);
    }
  }
  for (const auto& [command, words] :
       {std::pair("submit", "slurm kubernetes"), std::pair("completion", "bash zsh fish")}) {
    text += fmt::format(
        "complete -c paceline -n '__fish_seen_subcommand_from {0}; and not "
        "__fish_seen_subcommand_from {1}' -f -a '{1}'\n",
        command, words);
  }
  return text;
}

}  // namespace

int completion_command(const Arguments& arguments) {
  const std::string shell = arguments.size() == 1 ? arguments[0] : "";
  if (shell == "--help" || shell == "-h") {
    fmt::print(
        "Usage: paceline completion bash|zsh|fish\n\nPrints a script that completes commands and "
        "options.\n\nExamples:\n  source <(paceline completion bash)\n  paceline completion zsh > "
        "~/.zsh/functions/_paceline\n  paceline completion fish > "
        "~/.config/fish/completions/paceline.fish\n");
    return 0;
  }
  if (shell != "bash" && shell != "zsh" && shell != "fish") {
    throw UsageError("give one shell: paceline completion bash, zsh or fish");
  }
  const auto commands = all_commands();
  fmt::print("{}", shell == "bash"  ? bash_script(commands)
                   : shell == "zsh" ? zsh_script(commands)
                                    : fish_script(commands));
  return 0;
}

}  // namespace paceline::apps
