// aws-vpc.ts - the backend that writes its routes into route tables of Amazon VPC.

import type { Backend, BackendParts } from '../contract.ts'
import { createFabricBackend } from './fabric.ts'
import { AwsPublisher } from './fabric/aws-publisher.ts'

export const createAwsVpcBackend = (parts: BackendParts<'aws-vpc'>): Backend =>
  createFabricBackend('aws-vpc', parts, (place) => new AwsPublisher(parts.settings.routeTables, place))
