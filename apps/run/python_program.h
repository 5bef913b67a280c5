#pragma once

// Programs that are started by Python's interpreter: `paceline run train.py` and
// `paceline run -m MODULE`, as with torchrun.
//
// Thread safety: pure functions, apart from looking at the file.

#include <string>
#include <vector>

namespace paceline::apps {

// Puts the interpreter before a program that needs one: before `-m MODULE`, and before a file
// NAME.py that exists but is not found as a program, because it is not executable or lies in no
// directory of PATH. Other programs stay as they are. The interpreter is the value of
// PACELINE_PYTHON, which the command of the Python package sets to its own interpreter, or python3.
// Throws UsageError if no module follows -m.
std::vector<std::string> with_interpreter(std::vector<std::string> program);

}  // namespace paceline::apps
