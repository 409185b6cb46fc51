// kernel-errors.ts - makes changes of the kernel's configuration, and classifies the errors with which the kernel
// refuses them. Also returns the remedy for errors that SELinux may have caused.

import { readFileSync } from 'node:fs'
import type { WeftError } from '../base/errors.ts'
import type { Change, HostKernel, KernelRefusal } from './kernel.ts'

/** Returns the name of the error number with which the kernel refused a request; undefined for any other error. */
export const errnoOf = (error: unknown): string | undefined =>
  ((error as Partial<WeftError> | undefined)?.cause as Partial<KernelRefusal> | undefined)?.errno

/** The names of the errors with which the kernel refuses a removal because the object is gone already. */
const GONE: ReadonlySet<string | undefined> = new Set(['ENODEV', 'ENOENT', 'ESRCH', 'EADDRNOTAVAIL'])

/** Returns true if the error of a removal means that another program has already removed the object. */
export const isGone = (error: unknown): boolean => GONE.has(errnoOf(error))

/** Applies all changes to the kernel's configuration, even if one of them fails. Throws the first error. */
export async function applyChanges(kernel: HostKernel, changes: readonly Change[]): Promise<void> {
  const error = (await kernel.change(changes)).find((each) => each !== undefined)
  if (error) throw error
}

/** Makes a change. Throws the error if the kernel refuses the change. */
export const applyChange = (kernel: HostKernel, change: Change): Promise<void> => applyChanges(kernel, [change])

/**
 * Makes all of these changes, which remove objects, even if one of them fails. Ignores objects that are gone already.
 * Throws the first error.
 */
export async function removeAll(kernel: HostKernel, changes: readonly Change[]): Promise<void> {
  const error = (await kernel.change(changes)).find((each) => each !== undefined && !isGone(each))
  if (error) throw error
}

/** user:role:type, and usually a level such as `s0:c1,c2` (selinux(8)). The names of AppArmor's profiles do not match. */
const CONTEXT = /^[^:\s]+:[^:\s]+:[^:\s]+(:\S+)?$/

/**
 * Returns the remedy for an operation that failed with EACCES, if SELinux may have forbidden the operation. Returns
 * undefined if this process has no SELinux context, that is, if the host runs without SELinux. The kernel returns
 * EACCES for SELinux and for missing file permissions alike, so the remedy cannot name the cause for certain.
 */
export function selinuxRemedy(
  readContext = (): string => readFileSync('/proc/self/attr/current', 'utf8'),
): string | undefined {
  try {
    const context = readContext().replace(/[\0\n]+$/, '')
    if (!CONTEXT.test(context)) return undefined
    return `SELinux may forbid it to ${context}: list the denials with \`ausearch -m avc -ts recent\`, and give weft's pods the type spc_t (docs/kubernetes/security.md)`
  } catch {
    return undefined // the kernel has no security module that labels processes
  }
}
