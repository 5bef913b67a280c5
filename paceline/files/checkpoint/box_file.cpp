#include "paceline/files/checkpoint/box_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include <sys/stat.h>

#include "paceline/engine/core/bytes.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/dtype_traits.h"
#include "paceline/engine/core/error_text.h"
#include "paceline/files/checkpoint/file_system.h"
#include "paceline/files/checkpoint/manifest.h"

namespace paceline {

namespace {

constexpr std::string_view kBoxMagic = "PLBOXES3";
constexpr std::size_t kTrailerBytes = 64;
constexpr std::size_t kRunBytes = 24;
// The writer computes the checksums of this many bytes, then writes these bytes. The number is a
// multiple of the chunk size, large enough to keep the disk busy, and so small that the bytes are
// still in the caches when the kernel copies them.
constexpr std::size_t kPieceBytes = 1024 * kChunkBytes;

std::uint64_t num_chunks(std::uint64_t data_bytes) {
  return (data_bytes + kChunkBytes - 1) / kChunkBytes;
}

// Returns the trailer: magic, bytes of a chunk, number, step, bytes of data, run, zeros.
std::vector<std::byte> trailer_of(const BoxFileId& id, std::uint64_t data_bytes) {
  ByteWriter writer;
  writer.put_bytes(as_bytes(kBoxMagic));
  writer.put(static_cast<std::uint32_t>(kChunkBytes));
  writer.put(id.number);
  writer.put(id.step);
  writer.put(data_bytes);
  writer.put_bytes(as_bytes(std::string_view(id.run).substr(0, kRunBytes)));
  std::vector<std::byte> trailer = writer.take();
  trailer.resize(kTrailerBytes);
  return trailer;
}

}  // namespace

std::string box_file_name(std::uint32_t number, std::size_t num_files) {
  return fmt::format("boxes-{:05}-of-{:05}.bin", number, num_files);
}

BoxFileWriter::BoxFileWriter(FileSystem& files, const std::string& path, const BoxFileId& id,
                             std::uint64_t data_bytes)
    : name_(path.substr(path.rfind('/') + 1)),
      id_(id),
      data_bytes_(data_bytes),
      size_(data_bytes + num_chunks(data_bytes) * sizeof(std::uint32_t) + kTrailerBytes),
      file_(files, path, size_) {
  static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "a big-endian port must swap here");
}

void BoxFileWriter::add(std::span<const std::byte> box) {
  for (; !box.empty(); box = box.subspan(std::min(kPieceBytes, box.size()))) {
    const auto piece = box.first(std::min(kPieceBytes, box.size()));
    add_checksums(piece);
    file_.write(piece);
  }
}

// Adds the checksums of the bytes in `rest`. If the last chunk is incomplete, the first of these
// bytes are added to it.
void BoxFileWriter::add_checksums(std::span<const std::byte> rest) {
  if (in_last_sum_ > 0) {
    const auto head = rest.first(std::min(kChunkBytes - in_last_sum_, rest.size()));
    sums_.back() = crc32c(head, sums_.back());
    in_last_sum_ = (in_last_sum_ + head.size()) % kChunkBytes;
    rest = rest.subspan(head.size());
  }
  const std::size_t whole = rest.size() / kChunkBytes;
  sums_.resize(sums_.size() + whole);
  crc32c_of_chunks(rest.first(whole * kChunkBytes), kChunkBytes, std::span(sums_).last(whole));
  rest = rest.subspan(whole * kChunkBytes);
  if (!rest.empty()) {
    sums_.push_back(crc32c(rest));
    in_last_sum_ = rest.size();
  }
}

ManifestFile BoxFileWriter::finish() {
  Digest digest;
  const auto trailer = trailer_of(id_, data_bytes_);
  for (const auto tail : {std::as_bytes(std::span(sums_)), std::span<const std::byte>(trailer)}) {
    digest.update(tail);
    file_.write(tail);
  }
  file_.finish();
  return {name_, size_, digest.hex()};
}

BoxFile::BoxFile(FileSystem& files, const std::string& path, const ManifestFile& entry,
                 const BoxFileId& id)
    : files_(files), path_(path), fd_(open_plain_file(files, path)) {
  try {
    struct stat status {};
    if (::fstat(fd_, &status) != 0) throw system_error(path_ + ": cannot stat");
    const auto size = static_cast<std::uint64_t>(status.st_size);
    if (size != entry.size)
      fail(ErrorCode::kCorrupt, "{}: expected {} bytes, found {}", path_, entry.size, size);
    // The tail of the file consists of the checksums and the trailer. The size of the tail
    // follows from the file's; its content is not trusted until its digest has been checked.
    constexpr std::uint64_t kChunkWithSum = kChunkBytes + sizeof(std::uint32_t);
    if (size < kTrailerBytes)
      fail(ErrorCode::kCorrupt, "{}: {} bytes are too few for a file of boxes", path_, size);
    const std::uint64_t chunks = (size - kTrailerBytes + kChunkWithSum - 1) / kChunkWithSum;
    std::vector<std::byte> tail(chunks * sizeof(std::uint32_t) + kTrailerBytes);
    if (tail.size() > size)
      fail(ErrorCode::kCorrupt, "{}: a file of boxes cannot have {} bytes", path_, size);
    data_bytes_ = size - tail.size();
    read_at(data_bytes_, tail);
    const auto trailer = std::span(tail).last(kTrailerBytes);
    const auto found = digest_of(tail);
    if (found != entry.digest) {
      // The file belongs to another checkpoint, or it is damaged.
      ByteReader reader(trailer);
      std::string what = "damaged";
      if (to_string(reader.take(kBoxMagic.size())) == kBoxMagic) {
        reader.get<std::uint32_t>();
        const auto number = reader.get<std::uint32_t>();
        const auto step = reader.get<std::int64_t>();
        reader.get<std::uint64_t>();
        std::string run = to_string(reader.take(kRunBytes));
        run.resize(std::strlen(run.c_str()));
        if (number != id.number || step != id.step || run != id.run.substr(0, kRunBytes)) {
          what =
              fmt::format("file {} of step {} of run \"{}\", expected file {} of step {} of \"{}\"",
                          number, step, run, id.number, id.step, id.run);
        }
      }
      fail(ErrorCode::kCorrupt, "{}: {}; XXH3-128 digest of its sums: expected {}, found {}", path_,
           what, entry.digest, found);
    }
    if (!std::ranges::equal(trailer, trailer_of(id, data_bytes_)))
      fail(ErrorCode::kCorrupt, "{}: the trailer is not that of file {} of step {}", path_,
           id.number, id.step);
    sums_.resize(chunks);
    if (chunks > 0) std::memcpy(sums_.data(), tail.data(), chunks * sizeof(std::uint32_t));
  } catch (...) {
    files_.close(fd_);
    throw;
  }
}

BoxFile::~BoxFile() { files_.close(fd_); }

void BoxFile::read_at(std::uint64_t position, std::span<std::byte> bytes) {
  read_plain_file_at(files_, fd_, path_, position, bytes);
  bytes_read_ += bytes.size();
}

void BoxFile::read_chunks(std::uint64_t first, std::span<std::byte> bytes) {
  const std::uint64_t begin = first * kChunkBytes;
  check(begin + bytes.size() <= data_bytes_ &&
            (bytes.size() % kChunkBytes == 0 || begin + bytes.size() == data_bytes_),
        "{}: bytes {} to {} are not whole chunks of the file", path_, begin, begin + bytes.size());
  read_at(begin, bytes);
  const std::size_t whole = bytes.size() / kChunkBytes;
  std::vector<std::uint32_t> found(whole);
  crc32c_of_chunks(bytes.first(whole * kChunkBytes), kChunkBytes, found);
  if (bytes.size() % kChunkBytes != 0) found.push_back(crc32c(bytes.subspan(whole * kChunkBytes)));
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i] == sums_[first + i]) continue;
    const std::uint64_t at = begin + i * kChunkBytes;
    fail(ErrorCode::kCorrupt, "{}: CRC-32C of bytes {} to {}: expected {:08x}, found {:08x}", path_,
         at, std::min(at + kChunkBytes, data_bytes_), sums_[first + i], found[i]);
  }
}

namespace {

constexpr std::uint64_t kChunksPerPiece = 256;  // the most chunks that are read at once

std::uint64_t chunk_of(std::uint64_t position) { return position / kChunkBytes; }

}  // namespace

BoxReader::BoxReader(FileSystem& files, std::string folder, const Manifest& manifest)
    : files_(files), folder_(std::move(folder)), manifest_(manifest) {}

// Returns a file of the checkpoint, and opens it at the first call.
BoxFile& BoxReader::file(std::uint32_t number) {
  auto& opened = open_[number];
  if (!opened) {
    const ManifestFile& entry = manifest_.files.at(number);
    opened = std::make_unique<BoxFile>(files_, folder_ + "/" + entry.name, entry,
                                       BoxFileId{manifest_.step, manifest_.run, number});
  }
  return *opened;
}

// Adds to `runs` the runs of bytes that `wanted` gets from each stored box of the tensor.
void BoxReader::add_runs(RunsByFile& runs, const StoredTensor& tensor, const WantedBox& wanted) {
  const std::uint64_t element = size_of(tensor.dtype);
  for (const StoredBox& stored : tensor.boxes) {
    const auto part = common_part(stored.box, wanted.box);
    if (!part) continue;
    for_common_runs(*part, stored.box, wanted.box,
                    [&](std::int64_t in_file, std::int64_t in_memory, std::int64_t count) {
                      runs[stored.file].push_back(
                          {stored.position + static_cast<std::uint64_t>(in_file) * element,
                           static_cast<std::uint64_t>(count) * element,
                           wanted.to + static_cast<std::uint64_t>(in_memory) * element});
                    });
  }
}

void BoxReader::read(std::span<const WantedBox> wanted) {
  RunsByFile runs;
  for (const WantedBox& one : wanted) {
    const StoredTensor* const tensor = manifest_.find(one.name);
    check(tensor != nullptr, "{}: the checkpoint has no tensor \"{}\"", folder_, one.name);
    check(one.box.sizes.size() == tensor->shape.size(),
          "{}: tensor \"{}\" has {} dimensions, but the box {} has {}", folder_, one.name,
          tensor->shape.size(), to_string(one.box), one.box.sizes.size());
    const auto inside = common_part(one.box, whole_box(tensor->shape));
    if (num_elements(one.box) == 0) continue;
    check(inside == one.box, "{}: the box {} is not within the shape of tensor \"{}\"", folder_,
          to_string(one.box), one.name);
    add_runs(runs, *tensor, one);
  }
  for (auto& [number, runs_of_file] : runs) read_runs(file(number), runs_of_file);
}

// Reads all runs of one file, in the order of their positions. Reads the file in pieces of
// consecutive chunks that all contain wanted bytes.
void BoxReader::read_runs(BoxFile& from, std::vector<Run>& runs) {
  std::ranges::sort(runs, {}, &Run::position);
  std::vector<std::byte> piece;
  std::size_t begun = 0;   // the first run that has not been read completely
  std::uint64_t next = 0;  // the chunks before chunk `next` are no longer needed
  while (begun < runs.size()) {
    // Find the next piece: the chunks [first, end). The runs [begun, last) may have bytes in it.
    const std::uint64_t first = std::max(next, chunk_of(runs[begun].position));
    std::uint64_t end = first;
    std::size_t last = begun;
    const std::uint64_t limit = first + kChunksPerPiece;
    for (; last < runs.size() && chunk_of(runs[last].position) <= std::min(end, limit - 1); ++last)
      end = std::max(end, chunk_of(runs[last].position + runs[last].bytes - 1) + 1);
    end = std::min(end, limit);
    const std::uint64_t begin_byte = first * kChunkBytes;
    const std::uint64_t end_byte = std::min(end * kChunkBytes, from.data_bytes());
    piece.resize(end_byte - begin_byte);
    from.read_chunks(first, piece);
    for (std::size_t i = begun; i < last; ++i) {
      const Run& run = runs[i];
      const std::uint64_t begin = std::max(run.position, begin_byte);
      const std::uint64_t stop = std::min(run.position + run.bytes, end_byte);
      if (begin >= stop) continue;
      std::memcpy(run.to + (begin - run.position), piece.data() + (begin - begin_byte),
                  stop - begin);
    }
    next = end;
    while (begun < runs.size() && runs[begun].position + runs[begun].bytes <= end_byte) ++begun;
  }
}

void BoxReader::verify() {
  std::vector<std::byte> piece;
  for (std::uint32_t number = 0; number < manifest_.files.size(); ++number) {
    BoxFile& one = file(number);
    for (std::uint64_t done = 0; done < one.data_bytes(); done += piece.size()) {
      piece.resize(std::min(one.data_bytes() - done, kChunksPerPiece * kChunkBytes));
      one.read_chunks(chunk_of(done), piece);
    }
  }
}

std::uint64_t BoxReader::bytes_read() const {
  std::uint64_t bytes = 0;
  for (const auto& [number, one] : open_) bytes += one->bytes_read();
  return bytes;
}

}  // namespace paceline
