// kube-pki.ts - the certificates of a test's Kubernetes cluster, all signed by one authority.

import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { output } from '../../lab/command.ts'

/** The paths of PEM files. */
export interface Certificate {
  readonly cert: string
  readonly key: string
}

export interface Authority {
  /** The path of the authority's certificate, and of its key. */
  readonly ca: Certificate
  /**
   * Issues a certificate for servers and clients. The API server takes the user's name from CN and the groups from O. `names` are the
   * subject's alternative names, such as `IP:10.96.0.1`.
   */
  issue(name: string, subject: string, names?: readonly string[]): Promise<Certificate>
}

const EC = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-days', '2']

export async function makeAuthority(folder: string): Promise<Authority> {
  mkdirSync(folder, { recursive: true })
  const file = (name: string): string => join(folder, name)
  const of = (name: string): Certificate => ({ cert: file(`${name}.crt`), key: file(`${name}.key`) })
  const ca = of('ca')
  await output(['openssl', 'req', '-x509', ...EC, '-subj', '/CN=cluster-ca', '-keyout', ca.key, '-out', ca.cert])
  let serial = Date.now()
  return {
    ca,
    async issue(name, subject, names = []) {
      const made = of(name)
      const [request, extensions] = [file(`${name}.csr`), file(`${name}.extensions`)]
      writeFileSync(extensions, names.length > 0 ? `subjectAltName=${names.join()}\n` : '')
      await output(['openssl', 'req', ...EC, '-subj', subject, '-keyout', made.key, '-out', request])
      const signed = ['openssl', 'x509', '-req', '-in', request, '-CA', ca.cert, '-CAkey', ca.key]
      await output([
        ...signed,
        '-set_serial',
        String(serial++),
        '-days',
        '2',
        '-extfile',
        extensions,
        '-out',
        made.cert,
      ])
      return made
    },
  }
}
