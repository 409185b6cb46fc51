// kernel-esp.ts - finds out whether the kernel can carry ESP packets (CONFIG_INET_ESP).

import { isRefusal, type Run } from '../../../host/command.ts'

/**
 * The selector of a security association that weftd adds only to test the kernel: loopback addresses, and an SPI below
 * 256, which no key exchange uses (RFC 4303 section 2.1).
 */
const SELECTOR = ['src', '127.0.0.2', 'dst', '127.0.0.3', 'proto', 'esp', 'spi', '0x000000ff']
/**
 * Ciphers that every kernel with ESP supports. The keys may be public, because no packet is ever encrypted with them.
 */
const CIPHERS = [
  ['aead', 'rfc4106(gcm(aes))', `0x${'01'.repeat(20)}`, '128'],
  ['enc', 'cbc(aes)', `0x${'01'.repeat(16)}`, 'auth-trunc', 'hmac(sha256)', `0x${'01'.repeat(32)}`, '128'],
]

/**
 * Adds an ESP security association to the kernel and removes it again. Returns true if the kernel accepted it. The
 * kernel loads its ESP module for this test. Throws WeftError if `ip` cannot be run.
 */
export async function canKernelCarryEsp(run: Run): Promise<boolean> {
  const remove = (): Promise<boolean> => succeeds(run, ['xfrm', 'state', 'delete', ...SELECTOR])
  await remove() // the association of an interrupted trial
  for (const cipher of CIPHERS)
    if (await succeeds(run, ['xfrm', 'state', 'add', ...SELECTOR, 'mode', 'tunnel', ...cipher])) return remove()
  return false
}

/**
 * Runs `ip` without a time limit, because the kernel may have to load modules. Returns false if the kernel refuses the
 * command.
 */
async function succeeds(run: Run, words: readonly string[]): Promise<boolean> {
  try {
    await run('ip', words, { patient: true })
    return true
  } catch (error) {
    if (isRefusal(error)) return false
    throw error
  }
}
