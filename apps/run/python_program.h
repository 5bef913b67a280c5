#pragma once

// Programs that are started by Python's interpreter: `paceline run train.py` and
// `paceline run -m MODULE`, as with torchrun.
//
// Thread safety: may be called from any thread; reads the environment and the file system.

#include <string>
#include <vector>

namespace paceline::apps {

// Puts the interpreter before a program that needs one: before `-m MODULE`, and before an existing
// file NAME.py, unless its name contains a '/' and the file is executable. Other programs stay as
// they are. The interpreter is the value of PACELINE_PYTHON, which the command of the Python
// package sets to its own interpreter, or python3. Throws UsageError if no module follows -m.
std::vector<std::string> with_interpreter(std::vector<std::string> program);

}  // namespace paceline::apps
