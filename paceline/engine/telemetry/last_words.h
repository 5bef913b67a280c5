#pragma once

// Tells others why this process is about to end with an uncaught exception. Without it, the peers
// of a rank would learn only that its connections closed.
//
// Thread safety: objects may be made and destroyed by any thread.

#include <functional>
#include <string>

namespace paceline {

// As long as the object exists, an exception that nothing catches (report_uncaught_errors()) calls
// `say` with the text that is printed, without "error: ". A thread of its own makes the call, and
// the process waits for at most 2 s, because the thread that threw may hold any lock. `say` must
// not make or destroy a LastWords.
class LastWords {
 public:
  using Say = std::function<void(const std::string& text)>;

  explicit LastWords(Say say);
  ~LastWords();
  LastWords(const LastWords&) = delete;
  LastWords& operator=(const LastWords&) = delete;

 private:
  const Say say_;

  friend void say_last_words(const std::string& text) noexcept;
};

// Calls the functions of all LastWords objects; used when the process is about to end.
void say_last_words(const std::string& text) noexcept;

}  // namespace paceline
