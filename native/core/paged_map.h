// paged_map.h - a hash map that threads look into while another one changes it, at a cost that hardly depends on its
// size.
//
// Keys are spread over pages by their hash, and each page is an open-addressing table by itself, at most half full,
// which grows and shrinks by itself. A change copies the page that the key is in, and the list of pages: whoever looks
// into the pages of before finds what was there before, until they are freed (core/peers.h says when).
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace weft {

/// Pages that no new reader finds, and somebody may still be reading.
using Garbage = std::vector<std::unique_ptr<void, void (*)(void*)>>;

/// Multiplies by the golden ratio. Only the upper bits depend on all others, and the low ones not at all: a subnet's
/// host bits are zero, so those of the product are.
constexpr uint64_t hash_of(uint64_t key) { return key * 0x9e3779b97f4a7c15ull; }
constexpr uint64_t hash_of(uint32_t key) { return hash_of(uint64_t{key} << 32); }

/// `Key` has hash_of(key), whose upper bits count, and `Value{}` is that of a key that is not there.
template <typename Key, typename Value>
class PagedMap {
  static constexpr int kPageBits = 10;

 public:
  struct Slot {
    Key key;
    Value value;
  };

  /// The part that readers look into; it never changes.
  class Pages {
   public:
    Value find(const Key& key) const {
      const uint64_t hash = hash_of(key);
      const Page& page = pages_[hash >> (64 - kPageBits)];
      for (size_t at = page.home(hash);; at = (at + 1) & page.mask()) {
        const Slot& slot = page.slots[at];
        if (slot.key == key || slot.value == Value{}) return slot.value;
      }
    }

   private:
    friend class PagedMap;
    struct Page {
      Slot* slots;
      uint32_t used;
      uint8_t shift;  // 64 less the bits of a place in it
      size_t mask() const { return ~uint64_t{0} >> shift; }
      size_t home(uint64_t hash) const { return hash << kPageBits >> shift; }
    };
    std::array<Page, 1 << kPageBits> pages_;
  };

  PagedMap() : pages_(new Pages) {
    for (Page& page : pages_->pages_) page = new_page(kLeastBits);
  }
  PagedMap(PagedMap&& other) noexcept : pages_(std::exchange(other.pages_, nullptr)), size_(other.size_) {}
  ~PagedMap() {
    if (!pages_) return;
    for (const Page& page : pages_->pages_) delete[] page.slots;
    delete pages_;
  }

  /// The pages as they are by now; what is put after the next `settle` does not change these.
  const Pages* pages() const { return pages_; }
  size_t size() const { return size_; }
  Value find(const Key& key) const { return pages_->find(key); }

  /// Gives the pages to readers: from now on they do not change.
  void settle() {
    is_own_ = false;
    own_.reset();
  }

  /// Sets what a key has, or removes it by Value{}.
  void put(const Key& key, Value value, Garbage& garbage) {
    const uint64_t hash = hash_of(key);
    Page& page = own_page(hash >> (64 - kPageBits), garbage);
    size_t at = page.home(hash);
    while (page.slots[at].value != Value{} && !(page.slots[at].key == key)) at = (at + 1) & page.mask();
    const bool was_there = page.slots[at].value != Value{};
    if (value == Value{}) {
      if (was_there) remove(page, at);
      return;
    }
    page.slots[at] = {key, value};
    if (was_there) return;
    page.used++;
    size_++;
    // A page of its own is one that nobody looks into yet.
    if (page.used > (page.mask() + 1) / 2) delete[] std::exchange(page, copy(page)).slots;
  }

  /// Calls `each` with every key and its value.
  template <typename Each>
  void for_each(Each each) const {
    for (const Page& page : pages_->pages_) {
      for (size_t at = 0; at <= page.mask(); at++) {
        if (page.slots[at].value != Value{}) each(page.slots[at].key, page.slots[at].value);
      }
    }
  }

  /// The most slots in a row that are taken: what a look-up may have to walk.
  size_t longest_run() const {
    size_t longest = 0;
    for (const Page& page : pages_->pages_) {
      size_t run = 0;
      // Twice round: a run may go on at the beginning.
      for (size_t at = 0; at <= 2 * page.mask() + 1; at++) {
        run = page.slots[at & page.mask()].value == Value{} ? 0 : run + 1;
        longest = std::max(longest, run);
      }
    }
    return longest;
  }

 private:
  using Page = typename Pages::Page;
  static constexpr int kLeastBits = 1;

  static Page new_page(int bits) { return {new Slot[size_t{1} << bits](), 0, static_cast<uint8_t>(64 - bits)}; }

  /// Copies a page with room for one more entry, and not much room beyond.
  static Page copy(const Page& from) {
    const int wanted = std::bit_width(2 * from.used + 1);
    const int has = 64 - from.shift;
    Page to = new_page(wanted > has || wanted + 1 < has ? wanted : has);
    to.used = from.used;
    for (size_t at = 0; at <= from.mask(); at++) {
      const Slot& slot = from.slots[at];
      if (slot.value == Value{}) continue;
      size_t place = to.home(hash_of(slot.key));
      while (to.slots[place].value != Value{}) place = (place + 1) & to.mask();
      to.slots[place] = slot;
    }
    return to;
  }

  Page& own_page(size_t index, Garbage& garbage) {
    if (!is_own_) {
      garbage.push_back({pages_, [](void* old) { delete static_cast<Pages*>(old); }});
      pages_ = new Pages(*pages_);
      is_own_ = true;
    }
    Page& page = pages_->pages_[index];
    if (!own_[index]) {
      garbage.push_back({page.slots, [](void* old) { delete[] static_cast<Slot*>(old); }});
      page = copy(page);
      own_[index] = true;
    }
    return page;
  }

  /// Moves those behind it up that would not be found behind a free slot (Knuth, The Art of Computer Programming,
  /// volume 3, 6.4, algorithm R).
  void remove(Page& page, size_t hole) {
    for (size_t at = (hole + 1) & page.mask(); page.slots[at].value != Value{}; at = (at + 1) & page.mask()) {
      const size_t home = page.home(hash_of(page.slots[at].key));
      if (((at - home) & page.mask()) < ((at - hole) & page.mask())) continue;
      page.slots[hole] = page.slots[at];
      hole = at;
    }
    page.slots[hole] = {};
    page.used--;
    size_--;
  }

  Pages* pages_;
  bool is_own_ = false;              // nobody else looks into pages_
  std::bitset<1 << kPageBits> own_;  // nor into these of them
  size_t size_ = 0;
};

}  // namespace weft
