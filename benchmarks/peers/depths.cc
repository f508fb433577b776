// Tokens a second of llama.cpp, or of ik_llama.cpp, far behind the beginning of a sequence; a JSON object a
// depth.
//
//     g++ -O2 -std=c++17 benchmarks/peers/depths.cc -o depths -I LLAMA_CPP/include -I LLAMA_CPP/ggml/include
//         -L BUILD/bin -lllama -lggml -lggml-base -Wl,-rpath,BUILD/bin         (ik_llama.cpp: -D IK, no
//         -lggml-base)
//     depths FILE.gguf THREADS REPACK DEPTHS STEPS [PREFILL]        (2 1 0,512,8000,32000 32 0)
//
// `llama-bench -d DEPTH` computes the tokens before, for which it takes a quarter of an hour at 32,000. Here
// the state of two tokens is saved, made as long as the depth by repeating what it has of each layer, and
// loaded: the same kernels read as many keys and values. Windows hold no more positions than they see. All
// settings are those of llama-bench; REPACK is 1 to lay quantised weights out anew at load. At the depths of
// PREFILL, 512 tokens of a prompt are timed, too.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "llama.h"

namespace {

constexpr uint32_t kBegun = 2, kPrompt = 512;
constexpr size_t kLeast = 4;  // steps, however long they take
constexpr double kEnough_s = 5;

#ifdef IK  // no head, one stream without a count, two words behind the rows, rows of a type below zero that
           // are none
constexpr size_t kHead = 0, kTail = 8;
constexpr uint32_t kStreams = 0, kSequences = 0, kNoValues = 2;
size_t state_size(llama_context* context) { return llama_state_seq_get_size(context, 0, 0); }
void save(llama_context* context, std::vector<uint8_t>& state) {
  llama_state_seq_get_data(context, state.data(), state.size(), 0, 0);
}
bool load(llama_context* context, const std::vector<uint8_t>& state) {
  return llama_state_seq_set_data(context, state.data(), state.size(), 0, 0) == state.size();
}
void forget(llama_context* context) { llama_kv_cache_clear(context); }
llama_batch batch_of(std::vector<llama_token>& tokens, int at) {
  return llama_batch_get_one(tokens.data(), static_cast<int>(tokens.size()), at, 0);
}
uint32_t window_of(const llama_model*) { return 0; }  // a cache is as long as the context in every layer
// Its own defaults are flash attention and fused experts; merged matrices of queries, keys and values, or of
// gates and what is beside them, were no faster in one try.
void set(llama_model_params& model, llama_context_params& context, bool repack) {
  model.repack_tensors = repack;
  model.mla = context.mla_attn;
}
#else
constexpr size_t kHead = 8, kTail = 0;
constexpr uint32_t kStreams = 1, kSequences = 1, kNoValues = ~0u;
size_t state_size(llama_context* context) { return llama_state_seq_get_size(context, 0); }
void save(llama_context* context, std::vector<uint8_t>& state) {
  llama_state_seq_get_data(context, state.data(), state.size(), 0);
}
bool load(llama_context* context, const std::vector<uint8_t>& state) {
  return llama_state_seq_set_data(context, state.data(), state.size(), 0) == state.size();
}
void forget(llama_context* context) { llama_memory_clear(llama_get_memory(context), true); }
llama_batch batch_of(std::vector<llama_token>& tokens, int) {
  return llama_batch_get_one(tokens.data(), static_cast<int>(tokens.size()));
}
uint32_t window_of(const llama_model* model) { return static_cast<uint32_t>(llama_model_n_swa(model)); }
void set(llama_model_params& model, llama_context_params& context, bool repack) {
  model.use_extra_bufts = repack;
  context.swa_full = false;
}
#endif

// Reads a state of kBegun tokens and writes one of `depth` tokens.
class Longer {
 public:
  Longer(const std::vector<uint8_t>& state, uint32_t depth, uint32_t window) : state_(state) {
    copy(kHead);
    cache(depth, depth);
    if (at_ + kTail < state_.size()) cache(depth, std::min(depth, std::max(window, kBegun)));
    copy(kTail);
    if (at_ != state_.size()) fail();
  }
  const std::vector<uint8_t>& data() const { return made_; }

 private:
  [[noreturn]] static void fail() {
    throw std::runtime_error(
        "this version writes its state in another way, or has not chosen flash attention");
  }
  template <class T>
  T take() {
    if (at_ + sizeof(T) > state_.size()) fail();
    T value;
    std::memcpy(&value, &state_[at_], sizeof(T));
    at_ += sizeof(T);
    return value;
  }
  template <class T>
  void put(T value) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
    made_.insert(made_.end(), bytes, bytes + sizeof(T));
  }
  void copy(size_t bytes) {
    if (at_ + bytes > state_.size()) fail();
    made_.insert(made_.end(), state_.begin() + at_, state_.begin() + at_ + bytes);
    at_ += bytes;
  }
  // The last `kept` positions of a sequence of `depth`.
  void cache(uint32_t depth, uint32_t kept) {
    copy(4 * kStreams);
    if (take<uint32_t>() != kBegun) fail();
    put(kept);
    at_ += kBegun * (8 + 4 * kSequences);
    for (uint32_t cell = depth - kept; cell < depth; ++cell) {
      put(cell);
      put(kSequences);
      if (kSequences) put(uint32_t{0});
    }
    const auto transposed = take<uint32_t>();
    const auto layers = take<uint32_t>();
    if (transposed == 1) fail();
    put(transposed);
    put(layers);
    rows(layers, kept);
    if (transposed != kNoValues && at_ + kTail < state_.size())
      rows(layers, kept);  // latent rows have no values
  }
  void rows(uint32_t layers, uint32_t kept) {
    for (uint32_t layer = 0; layer < layers; ++layer) {
      const auto type = take<int32_t>();
      const auto bytes = take<uint64_t>();
      put(type);
      put(bytes);
      if (type < 0) continue;
      if (at_ + kBegun * bytes > state_.size()) fail();
      for (uint32_t row = 0; row < kept; ++row) {
        const auto from = state_.begin() + at_ + row % kBegun * bytes;
        made_.insert(made_.end(), from, from + bytes);
      }
      at_ += kBegun * bytes;
    }
  }

  const std::vector<uint8_t>& state_;
  std::vector<uint8_t> made_;
  size_t at_ = 0;
};

class Session {
 public:
  Session(const char* path, int threads, bool repack, uint32_t positions) {
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    llama_backend_init();
    auto of_model = llama_model_default_params();
    auto of_context = llama_context_default_params();
    set(of_model, of_context, repack);
    model_ = llama_model_load_from_file(path, of_model);
    if (!model_) throw std::runtime_error(std::string("cannot load ") + path);
    of_context.n_ctx = positions;
    of_context.n_threads = of_context.n_threads_batch = threads;
    context_ = llama_init_from_model(model_, of_context);
    if (!context_) throw std::runtime_error("cannot make a context");
  }

  // Seconds that tokens take behind what there is.
  double run(std::vector<llama_token> tokens) {
    const auto started = std::chrono::steady_clock::now();
    if (llama_decode(context_, batch_of(tokens, at_))) throw std::runtime_error("cannot decode");
    llama_synchronize(context_);
    at_ += static_cast<int>(tokens.size());
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  }

  void begin_at(uint32_t depth) {
    clear();
    if (!depth) return;
    run(std::vector<llama_token>(kBegun, 3));
    std::vector<uint8_t> state(state_size(context_));
    save(context_, state);
    const Longer longer(state, depth, window_of(model_));
    clear();
    if (!load(context_, longer.data())) throw std::runtime_error("a state of that length is not taken");
    at_ = static_cast<int>(depth);
  }

 private:
  void clear() {
    forget(context_);
    at_ = 0;
  }

  llama_model* model_;
  llama_context* context_;
  int at_ = 0;
};

std::vector<uint32_t> numbers(const char* text) {
  std::vector<uint32_t> made;
  std::stringstream list(text);
  for (std::string each; std::getline(list, each, ',');)
    made.push_back(static_cast<uint32_t>(std::stoul(each)));
  return made;
}

void measure(int count, char** given) {
  const auto depths = numbers(given[4]), prompts = numbers(count > 6 ? given[6] : "");
  const size_t steps = std::stoul(given[5]);
  const auto positions =
      *std::max_element(depths.begin(), depths.end()) + kPrompt + static_cast<uint32_t>(steps) + 64;
  Session session(given[1], std::atoi(given[2]), std::atoi(given[3]) != 0, positions);
  std::mt19937 random(1);
  std::vector<llama_token> ids(std::max<size_t>(kPrompt, steps));
  for (auto& id : ids) id = 3 + static_cast<int>(random() % 997);
  session.run(ids);  // warms up
  for (const uint32_t depth : depths) {
    double prefill = 0;
    if (std::count(prompts.begin(), prompts.end(), depth)) {
      session.begin_at(depth);
      prefill = kPrompt / session.run({ids.begin(), ids.begin() + kPrompt});
    }
    session.begin_at(depth);
    std::vector<double> seconds;
    for (double spent = 0; seconds.size() < steps && (seconds.size() < kLeast || spent < kEnough_s);) {
      seconds.push_back(session.run({ids[seconds.size()]}));
      spent += seconds.back();
    }
    const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
    std::nth_element(seconds.begin(), middle, seconds.end());
    std::printf("{\"depth\": %u, \"prefill_ts\": %.2f, \"decode_ts\": %.2f}\n", depth, prefill, 1 / *middle);
    std::fflush(stdout);
  }
}

}  // namespace

int main(int count, char** given) try {
  if (count < 6) throw std::runtime_error("depths FILE.gguf THREADS REPACK DEPTHS STEPS [PREFILL]");
  measure(count, given);
  std::quick_exit(0);
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
