// own-key.ts - reads this node's key pair from the key file when weftd starts, and logs later changes of the file.

import type { Log } from '../../../base/log.ts'
import type { Secret } from '../../../base/secret.ts'
import { applyChange } from '../../../host/kernel-errors.ts'
import type { HostKernel } from '../../../host/kernel.ts'
import { withTestDevice } from './carrier.ts'
import { changeOf, privateKeyOf, publicKeyTo } from './key-file.ts'

/** The key pair of this node, which stays the same while weftd runs. */
export interface OwnKey {
  readonly privateKey: Secret
  /** The public key in base64. */
  readonly publicKey: string
}

export class OwnKeyFile {
  readonly path: string
  /** True if this Node.js lacks X25519. In that case the kernel computes the public key. */
  readonly #lacksX25519: boolean
  readonly #kernel: HostKernel
  readonly #log: Log
  /** The key pair that the key file had at the start; undefined before the file was read. */
  #atStart: Promise<OwnKey> | undefined
  /** The text of the last warning in the log about the key file; undefined if the file contains this node's key. */
  #change: string | undefined

  constructor(path: string, lacksX25519: boolean, kernel: HostKernel, log: Log) {
    this.path = path
    this.#lacksX25519 = lacksX25519
    this.#kernel = kernel
    this.#log = log
  }

  /**
   * Returns the key that was in the key file at the start. Sessions and leases depend on this key, so a change of the
   * file has no effect until weftd is restarted.
   */
  async read(): Promise<OwnKey> {
    this.#atStart ??= this.#readFile()
    try {
      return await this.#atStart
    } catch (error) {
      this.#atStart = undefined // the file may be repaired
      throw error
    }
  }

  /** Logs once when the key file has changed, and once when it contains this node's key again. */
  async check({ privateKey }: OwnKey): Promise<void> {
    const change = await changeOf(this.path, privateKey)
    if (change === this.#change) return
    this.#change = change
    if (change === undefined) this.#log.info(`The key file ${this.path} holds the key of this node again`)
    else
      this.#log.warn(
        `This node continues with the key that it read at its start, although ${change}: restart weftd to use the file`,
      )
  }

  async #readFile(): Promise<OwnKey> {
    const privateKey = await privateKeyOf(this.path)
    const publicKey = this.#lacksX25519 ? await publicKeyByKernel(this.#kernel, privateKey) : publicKeyTo(privateKey)
    return { privateKey, publicKey }
  }
}

/** Lets the kernel compute a public key: the kernel reports the public key of each WireGuard device. */
function publicKeyByKernel(kernel: HostKernel, privateKey: Secret): Promise<string> {
  return withTestDevice(kernel, async (device) => {
    await applyChange(kernel, { kind: 'set wireguard', device, privateKey })
    return (await kernel.wireguard(device)).publicKey
  })
}
