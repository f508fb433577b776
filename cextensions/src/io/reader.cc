#include "moeinf/io/reader.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <stdexcept>

namespace moeinf {
namespace {

constexpr int kMaxQueueDepth = 1024;
constexpr std::int64_t kMaxSegmentBytes = std::int64_t{1} << 30;  // one read of the kernel is below 2 GiB
constexpr int kMaxThreads = 16;  // more only wait for each other: the disk is full before

const ReaderOptions& require_options(const ReaderOptions& options) {
  if (options.queue_depth < 1 || options.queue_depth > kMaxQueueDepth) {
    throw std::invalid_argument("queue_depth is " + std::to_string(options.queue_depth) +
                                "; it is from 1 to " + std::to_string(kMaxQueueDepth));
  }
  if (options.prefetch_depth < 1) throw std::invalid_argument("prefetch_depth is at least 1");
  if (options.segment_bytes < kBlockBytes || options.segment_bytes > kMaxSegmentBytes ||
      options.segment_bytes % kBlockBytes != 0) {
    throw std::invalid_argument("segment_bytes is a multiple of 4096, at most 1 GiB");
  }
  const Copies& copies = options.copies;
  if (copies.num_disks < 1 || copies.num_disks > kMostDisks)
    throw std::invalid_argument("there are 1 to " + std::to_string(kMostDisks) + " disks");
  if (!copies.cuts.empty() && copies.num_disks != 2)
    throw std::invalid_argument("files are divided among two disks");
  for (const Cut& cut : copies.cuts) {
    if (cut.first <= 0 || cut.first >= cut.period || cut.first % kBlockBytes != 0)
      throw std::invalid_argument("each disk has some whole blocks of what is divided");
  }
  return options;
}

std::vector<std::int64_t> on_each_disk(const std::vector<std::int64_t>& sizes, const Copies& copies) {
  std::vector<std::int64_t> all;
  for (int disk = 0; disk < copies.num_disks; ++disk) all.insert(all.end(), sizes.begin(), sizes.end());
  return all;
}

Copies with_files(Copies copies, int num_files) {
  copies.num_files = num_files;
  return copies;
}

void require_file(std::int64_t file, int count, const std::string& whose) {
  if (file < 0 || file >= count) {
    throw std::invalid_argument(whose + ": there is no file " + std::to_string(file));
  }
}

void require_range(const char* what, std::int64_t start, std::int64_t num_bytes, std::int64_t limit,
                   std::int64_t key) {
  if (start % kBlockBytes != 0 || num_bytes % kBlockBytes != 0) {
    throw std::invalid_argument("key " + std::to_string(key) + ": " + std::to_string(num_bytes) +
                                " bytes at " + std::to_string(start) + " of the " + what +
                                " are not on 4096-byte borders");
  }
  if (start < 0 || num_bytes <= 0 || num_bytes > limit || start > limit - num_bytes) {
    throw std::invalid_argument("key " + std::to_string(key) + ": " + std::to_string(num_bytes) +
                                " bytes at " + std::to_string(start) + " are not inside the " + what +
                                " of " + std::to_string(limit) + " bytes");
  }
}

}  // namespace

Reader::Reader(std::vector<std::string> paths, std::vector<std::int64_t> sizes, std::shared_ptr<Arena> arena,
               const ReaderOptions& options)
    : arena_(std::move(arena)),
      num_files_(static_cast<int>(sizes.size())),
      files_(std::move(paths), on_each_disk(sizes, require_options(options).copies), options.access,
             options.file_system),
      scheduler_(new Scheduler(options.queue_depth, options.prefetch_depth, options.segment_bytes,
                               with_files(options.copies, num_files_))) {
  if (!options.copies.cuts.empty() && options.copies.cuts.size() != sizes.size())
    throw std::invalid_argument("as many cuts as files are needed");
  start(options);
}

Reader::~Reader() { close(); }

Scheduler& Reader::at_home() const {
  home_.require();
  return *scheduler_;
}

void Reader::start(const ReaderOptions& options) {
  const int depth = options.queue_depth * options.copies.num_disks;
  const int num_threads = std::min(options.queue_depth, kMaxThreads) * options.copies.num_disks;
  if (options.backend != BackendKind::kThreads) {
    try {
      // The kernel retries a short read of such a file from where it began, and reports the whole as read.
      if (!files_.remote().empty())
        throw SystemFailure(EOPNOTSUPP, "io_uring not used (" + files_.remote() + ")");
      backend_.reset(make_ring_backend(*scheduler_, files_, depth, options.pread).release());
      return;
    } catch (const SystemFailure& refused) {
      if (options.backend == BackendKind::kRing) throw;
      refused_ring_ =
          std::string(refused.what()) + ": reading with " + std::to_string(num_threads) + " threads";
    }
  }
  backend_.reset(make_thread_backend(*scheduler_, files_, num_threads, options.pread).release());
}

std::string Reader::notice() const {
  home_.require();
  const std::string files = files_.notice();
  const std::string ring = refused_ring_.empty() ? backend_->notice() : refused_ring_;
  std::string line;
  for (const std::string& each : {files, ring, replaced()}) {
    if (!each.empty()) line += (line.empty() ? "" : "; ") + each;
  }
  return line;
}

std::string Reader::replaced() const {
  const std::optional<Replaced> found = scheduler_->first_replaced();
  if (!found) return {};
  return std::string(failure(found->failed).what()) + ": read from " + files_.path(found->file) + " instead";
}

void Reader::expect(Span<const std::int64_t> files, Span<const std::int64_t> offsets, std::int64_t num_bytes,
                    Span<const std::uint32_t> sums, Compared compared) {
  require_as_many(files, offsets, "offsets");
  require_as_many(files, sums, "sums");
  for (std::size_t i = 0; i < files.size(); ++i) {
    require_file(files[i], num_files_, "block " + std::to_string(i));
    const int file = static_cast<int>(files[i]);
    if (offsets[i] < 0 || num_bytes <= 0 || offsets[i] > files_.num_bytes(file) - num_bytes) {
      throw std::invalid_argument("block " + std::to_string(i) + " is not inside its file");
    }
  }
  for (std::size_t i = 0; i < files.size(); ++i)
    expected_[{static_cast<int>(files[i]), offsets[i]}] = {sums[i], compared, false, num_bytes, {}};
}

// Lets a piece be compared with the sum of the block that its range lies in, if there is one.
void Reader::find_sum(Piece* piece) {
  const std::int64_t from = piece->offset + piece->summed_from;
  auto place = expected_.upper_bound({piece->file, from});
  if (place == expected_.begin()) return;
  const auto& [file, start] = (--place)->first;
  if (file != piece->file || from + piece->summed_bytes > start + place->second.num_bytes) return;
  piece->sum = &place->second;
  piece->place_in_sum = from - start;
}

void Reader::submit(Span<const std::int64_t> keys, Span<const std::int64_t> files,
                    Span<const std::int64_t> offsets, Span<const std::int64_t> destinations,
                    std::int64_t num_bytes, Span<const double> priorities) {
  require_as_many(keys, files, "files");
  require_as_many(keys, offsets, "offsets");
  require_as_many(keys, destinations, "destinations");
  require_as_many(keys, priorities, "priorities");
  std::vector<Request> requests(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    require_file(files[i], num_files_, "key " + std::to_string(keys[i]));
    const int file = static_cast<int>(files[i]);
    require_range("file", offsets[i], num_bytes, files_.num_bytes(file), keys[i]);
    require_range("arena", destinations[i], num_bytes, static_cast<std::int64_t>(arena_->num_bytes()),
                  keys[i]);
    requests[i] = {keys[i],
                   priorities[i],
                   {file, offsets[i], arena_->data() + destinations[i], num_bytes, nullptr, 0, num_bytes},
                   {}};
    find_sum(&requests[i].piece);
  }
  if (at_home().submit(requests)) backend_->wake();
}

void Reader::submit_pieces(Span<const std::int64_t> keys, const Pieces& pieces,
                           Span<const double> priorities) {
  const auto& [files, offsets, destinations, num_bytes] = pieces;
  for (const RowSpan<const std::int64_t>* each : {&files, &offsets, &destinations, &num_bytes})
    if (each->rows != static_cast<std::int64_t>(keys.size()) || each->cols != files.cols)
      throw std::invalid_argument("pieces are [keys, pieces of each]");
  require_as_many(keys, priorities, "priorities");
  const auto num_pieces = static_cast<std::size_t>(files.cols);
  if (num_pieces == 0) throw std::invalid_argument("a request has at least one piece");
  std::vector<Request> requests(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    requests[i].key = keys[i];
    requests[i].priority = priorities[i];
    requests[i].more.reserve(num_pieces - 1);
    for (std::size_t j = i * num_pieces; j < (i + 1) * num_pieces; ++j) {
      const bool first = j == i * num_pieces;
      if (!first && num_bytes.data[j] == 0) continue;
      const Piece piece =
          piece_of(keys[i], files.data[j], offsets.data[j], destinations.data[j], num_bytes.data[j]);
      if (first) requests[i].piece = piece;
      if (!first) requests[i].more.push_back(piece);
    }
  }
  if (at_home().submit(requests)) backend_->wake();
}

// The blocks that a range lies in, cut at the end of the file.
Piece Reader::piece_of(std::int64_t key, std::int64_t file, std::int64_t offset, std::int64_t destination,
                       std::int64_t num_bytes) {
  require_file(file, num_files_, "key " + std::to_string(key));
  const int number = static_cast<int>(file);
  const std::int64_t file_bytes = files_.num_bytes(number);
  if (offset < 0 || num_bytes <= 0 || num_bytes > file_bytes || offset > file_bytes - num_bytes) {
    throw std::invalid_argument("key " + std::to_string(key) + ": " + std::to_string(num_bytes) +
                                " bytes at " + std::to_string(offset) + " are not inside the file of " +
                                std::to_string(file_bytes) + " bytes");
  }
  const std::int64_t start = offset / kBlockBytes * kBlockBytes;
  const std::int64_t end = (offset + num_bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
  require_range("arena", destination, end - start, static_cast<std::int64_t>(arena_->num_bytes()), key);
  Piece piece{
      number,         start,    arena_->data() + destination, std::min(end, file_bytes) - start, nullptr,
      offset - start, num_bytes};
  find_sum(&piece);
  return piece;
}

void Reader::reprioritise(Span<const std::int64_t> keys, Span<const double> priorities) {
  // What was held back as a prefetch may be demand now.
  if (at_home().reprioritise(keys, priorities)) backend_->wake();
}

std::vector<std::int64_t> Reader::cancel(Span<const std::int64_t> keys) { return at_home().cancel(keys); }

std::vector<std::int64_t> Reader::known(Span<const std::int64_t> keys) const { return at_home().known(keys); }

std::vector<std::int64_t> Reader::wait_any(Span<const std::int64_t> keys, std::chrono::milliseconds timeout) {
  Scheduler::Waited waited = at_home().wait_any(keys, timeout);
  if (waited.failed) throw failure(*waited.failed);
  return std::move(waited.done);
}

std::string Reader::path_of(std::int64_t key) const {
  const int file = at_home().file_of(key);
  return file < 0 ? "" : files_.path(file);
}

void Reader::close() {
  if (!home_.is_here()) return;
  const std::lock_guard<std::mutex> lock(closing_);
  scheduler_->close();
  if (!backend_) return;
  backend_->wake();
  backend_->join();
  files_.close();
}

ReadFailure Reader::failure(const FailedRequest& failed) const {
  const Piece& piece = failed.piece;
  const Outcome& outcome = failed.outcome;
  const std::string& path = files_.path(piece.file);
  // Of what was damaged, the range is told that the sum is of; of what was not read, the blocks that it lies
  // in.
  const std::int64_t from = outcome.damaged ? piece.summed_from - piece.place_in_sum : 0;
  const std::int64_t num_bytes = outcome.damaged ? piece.sum->num_bytes : piece.num_bytes;
  const std::int64_t offset = piece.offset + from;
  const std::string bytes = std::to_string(num_bytes) + " bytes at " + std::to_string(offset);
  const std::int64_t length = files_.num_bytes_now(piece.file);
  std::string what = "read of " + bytes + " in " + path + " failed: ";
  if (outcome.damaged) {
    what = bytes + " in " + path + " do not match their checksum";
  } else if (outcome.ended && length < piece.offset + piece.num_bytes) {
    what = path + " ends at " + std::to_string(length) + ", expected " + bytes + ": the file is truncated";
  } else if (outcome.ended) {
    what += "the file system gave " + std::to_string(outcome.num_bytes_read) + " of them";
  } else {
    what += std::strerror(outcome.error);
  }
  return ReadFailure(what, failed.key, outcome.damaged ? EBADMSG : outcome.error, path, offset,
                     outcome.num_bytes_read);
}

}  // namespace moeinf
