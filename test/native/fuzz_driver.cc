// fuzz_driver.cc - drives core_fuzz.cc where there is no libFuzzer: mutates what it is given, blindly.
//
//   fuzz_driver SECONDS FILE FOLDER...  all inputs of these folders, then mutations of them; the input of the moment
//                                       stands in FILE, so that it is there when the process dies of it
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "checks.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size);

namespace {

using Input = std::vector<uint8_t>;

/// One to eight changes: a bit, a byte, some more, some less, the end of another.
Input mutated(Input input, const Input& other) {
  constexpr size_t kMost = 8192;
  const auto any = [](size_t size) { return static_cast<std::ptrdiff_t>(random_below(static_cast<uint32_t>(size))); };
  for (uint32_t changes = 1 + random_below(8); changes > 0; changes--) {
    const auto at = input.begin() + any(input.size() + 1);
    const uint32_t kind = random_below(5);
    if (kind == 0 && at != input.end()) *at ^= static_cast<uint8_t>(1 << random_below(8));
    if (kind == 1 && at != input.end()) *at = static_cast<uint8_t>(random_below(256));
    if (kind == 2) input.insert(at, 1 + random_below(8), static_cast<uint8_t>(random_below(256)));
    if (kind == 3) input.erase(at, at + any(static_cast<size_t>(input.end() - at) + 1));
    if (kind == 4 && !other.empty()) {
      input.erase(at, input.end());
      input.insert(input.end(), other.begin() + any(other.size()), other.end());
    }
  }
  input.resize(std::min(input.size(), kMost));
  return input;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(std::atoi(argv[1]));
  const int file = open(argv[2], O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (file < 0) return 2;
  const unsigned seed = std::random_device()();
  rng.seed(seed);
  std::vector<Input> inputs;
  for (int i = 3; i < argc; i++) {
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
      std::ifstream stream(entry.path(), std::ios::binary);
      inputs.emplace_back(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>());
    }
  }
  if (inputs.empty()) return 2;
  const auto run = [&](const Input& input) {
    if (pwrite(file, input.data(), input.size(), 0) < 0 || ftruncate(file, static_cast<off_t>(input.size())) < 0)
      exit(2);
    LLVMFuzzerTestOneInput(input.data(), input.size());
  };
  const auto one = [&]() -> const Input& { return inputs[random_below(static_cast<uint32_t>(inputs.size()))]; };
  size_t runs = 0;
  for (const Input& input : inputs) run(input);
  for (; std::chrono::steady_clock::now() < end; runs++) run(mutated(one(), one()));
  std::printf("seed %u: %zu inputs, %zu mutations\n", seed, inputs.size(), runs);
  return unlink(argv[2]);
}
