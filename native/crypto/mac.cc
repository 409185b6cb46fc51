// mac.cc - calls OpenSSL's EVP_MAC interface, whose functions are found at run time.
#include "mac.h"

#include <algorithm>
#include <array>

#include "library.h"

namespace weft {

namespace {

/// The struct OSSL_PARAM of openssl/core.h. A list of parameters ends with an element without a name.
struct Parameter {
  const char* name;
  unsigned type;
  void* data;
  size_t bytes, returned;
};
constexpr unsigned kUnsigned = 2;  // The value of OSSL_PARAM_UNSIGNED_INTEGER in openssl/core_dispatch.h.

}  // namespace

/// The functions of openssl/evp.h that this file uses. OpenSSL's opaque types are declared as void.
struct Mac::Library {
  void* (*fetch)(void*, const char*, const char*);
  void (*free)(void*);
  void* (*new_context)(void*);
  void (*free_context)(void*);
  int (*init)(void*, const unsigned char*, size_t, const Parameter*);
  int (*update)(void*, const unsigned char*, size_t);
  int (*final)(void*, unsigned char*, size_t*, size_t);

  bool load() {
    return find_in_process(fetch, "EVP_MAC_fetch") && find_in_process(free, "EVP_MAC_free") &&
           find_in_process(new_context, "EVP_MAC_CTX_new") && find_in_process(free_context, "EVP_MAC_CTX_free") &&
           find_in_process(init, "EVP_MAC_init") && find_in_process(update, "EVP_MAC_update") &&
           find_in_process(final, "EVP_MAC_final");
  }
};

Mac::Mac(const Library& library) : library_(std::make_unique<const Library>(library)) {}

Mac::~Mac() {
  library_->free_context(context_);
  library_->free(algorithm_);
}

std::unique_ptr<Mac> Mac::create(std::span<const uint8_t, kKeyBytes> key) {
  Library library;
  if (!library.load()) return nullptr;
  const auto make = [&](std::span<const uint8_t, kKeyBytes> with) {
    std::unique_ptr<Mac> mac(new Mac(library));
    return mac->begin(with) ? std::move(mac) : nullptr;
  };
  std::array<uint8_t, kKeyBytes> known;
  for (size_t at = 0; at < known.size(); at++) known[at] = static_cast<uint8_t>(at);
  const auto asked = make(known);
  return asked && asked->knows_answer() ? make(key) : nullptr;
}

bool Mac::begin(std::span<const uint8_t, kKeyBytes> key) {
  algorithm_ = library_->fetch(nullptr, "BLAKE2SMAC", nullptr);
  context_ = algorithm_ ? library_->new_context(algorithm_) : nullptr;
  size_t bytes = kBytes;
  const Parameter parameters[] = {{"size", kUnsigned, &bytes, sizeof bytes, SIZE_MAX}, {}};
  return context_ && library_->init(context_, key.data(), key.size(), parameters) == 1;
}

/// Computes the MAC of a message. EVP_MAC_init without a key keeps the previous key.
bool Mac::compute(std::span<const uint8_t> message, uint8_t* mac) {
  size_t size = 0;
  return library_->init(context_, nullptr, 0, nullptr) == 1 &&
         library_->update(context_, message.data(), message.size()) == 1 &&
         library_->final(context_, mac, &size, kBytes) == 1 && size == kBytes;
}

bool Mac::is_of(std::span<const uint8_t> message, std::span<const uint8_t, kBytes> mac) {
  uint8_t right[kBytes];
  if (!compute(message, right)) return false;
  unsigned differs = 0;
  for (size_t at = 0; at < kBytes; at++) differs |= right[at] ^ mac[at];
  return differs == 0;
}

/// Checks a test vector twice, because the key must stay usable after a computation. The message is as long as the part
/// of a handshake initiation over which mac1 is computed.
bool Mac::knows_answer() {
  static constexpr uint8_t kAnswer[kBytes] = {0x74, 0x89, 0x8d, 0x91, 0xd3, 0x7a, 0xef, 0xbb,
                                              0xee, 0x96, 0x8f, 0x85, 0x85, 0x0c, 0x95, 0xf1};
  uint8_t message[116];
  for (size_t at = 0; at < sizeof message; at++) message[at] = static_cast<uint8_t>(at + 100);
  if (!is_of(message, kAnswer) || !is_of(message, kAnswer)) return false;
  message[0] ^= 1;
  return !is_of(message, kAnswer);
}

}  // namespace weft
