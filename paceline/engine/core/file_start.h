#pragma once

// What the first bytes of a file that somebody else made say about it: that it is not the file
// that was meant, or how its text is encoded. Readers of data sets, weights, images and texts ask
// before they interpret anything.
//
// Thread safety: pure functions.

#include <cstddef>
#include <span>
#include <string_view>

namespace paceline {

// What an unfinished download leaves in a file's place, as a phrase that says what to do: "a
// pointer of Git LFS, ...", "a web page, ...". Empty for any other file.
std::string_view mistaken_file(std::span<const std::byte> head);

// The number of bytes before a text begins: 3 for UTF-8's byte order mark, otherwise 0.
// Error(kCorrupt) as `where: …` for UTF-16, for UTF-32 and for a pointer of Git LFS. `head` needs 4
// bytes for the marks and 64 for the pointer, unless the text is shorter.
std::size_t text_start(std::span<const std::byte> head, std::string_view where);

}  // namespace paceline
